"""Whatever is sent, a dialect makes a chat request of it or says what is wrong."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_agentic_rl.gateway.dialects import shared_dialects
from mini_agentic_rl.gateway.dialects.chat import parse_chat_request
from mini_agentic_rl.gateway.render.messages import plain_messages
from mini_agentic_rl.http import HttpError, encode, json_object

DIALECTS = {dialect.path: dialect for dialect in shared_dialects()}

_WORDS = st.sampled_from(
    """user assistant system tool function message text f auto required any none function_call function_call_output
    reasoning input_text output_text tool_use tool_result thinking json_schema {} [ allowed_tools disabled""".split()  # noqa: SIM905
) | st.sampled_from(["", "\ud800"])
_FIELDS = st.sampled_from(
    """type role content text name call_id arguments output id input function tools tool_use_id thinking schema format
    mode parameters input_schema tool_calls source""".split()  # noqa: SIM905
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 10**20) | st.floats() | _WORDS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_FIELDS, inner, max_size=5),
    max_leaves=12,
)
_OPTIONS = """messages input instructions previous_response_id tools tool_choice parallel_tool_calls text metadata store
    stream temperature top_p top_k top_logprobs include reasoning system stop stop_sequences output_config n seed
    logit_bias logprobs stream_options response_format return_token_ids user background truncation
    structured_outputs guided_json guided_choice grammar regex chat_template_kwargs thinking reasoning_effort
    continue_final_message stop_token_ids output_format modalities"""
_REQUESTS = st.fixed_dictionaries({}, optional=dict.fromkeys(_OPTIONS.split(), _VALUES)).map(
    lambda fields: {"model": "tiny", "max_tokens": 9, **fields}
)


@pytest.mark.parametrize("path", DIALECTS)
@settings(max_examples=40, deadline=None)
@given(body=_REQUESTS | st.dictionaries(_FIELDS, _VALUES, max_size=4))
def test_any_object_is_a_chat_request_or_an_error_of_the_client(path, body):
    dialect = DIALECTS[path]
    sent = json_object(json.dumps(body).encode())
    error = _error_of(dialect, sent)
    if error is not None:
        assert 400 <= error.status < 500
        assert json.loads(encode(dialect.refusal(error)))["error"]["message"]


def _error_of(dialect, sent):
    try:
        plain_messages(parse_chat_request(dialect.open(sent, None).chat).messages)
        dialect.left_out(sent)
    except HttpError as error:
        return error
    return None
