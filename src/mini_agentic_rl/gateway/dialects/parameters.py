"""Fields of requests that a dialect's own API lacks: those of vLLM, SGLang and llama.cpp, whose clients come here.

A field is served, refused by name, or named in the answer's `X-Ignored-Parameters`; none is dropped in silence.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from ...http import BadRequestError


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


SERVED: Final = _names(
    """seed top_k min_p logit_bias presence_penalty frequency_penalty repetition_penalty repeat_penalty min_tokens
    stop_token_ids ignore_eos return_token_ids structured_outputs guided_json guided_regex guided_choice guided_grammar
    json_schema grammar regex ebnf"""
)
"""Sampling options and forms of answers that every dialect takes: they mean what they mean in a chat request."""

TEMPLATE: Final = frozenset({"chat_template_kwargs", "enable_thinking"})
"""Settings of the chat template. The dialects of conversations take them."""

_INDIFFERENT: Final = _names(
    """user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_retention prediction
    request_id rid priority cache_salt cache_prompt id_slot guided_decoding_backend spaces_between_special_tokens
    stream_reasoning timings_per_token return_progress mirostat_tau mirostat_eta dynatemp_exponent xtc_threshold
    dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers"""
)
"""Fields that change nothing in what is answered: accounting, caches, and details of samplers that are refused."""

_NOTHING: Final[tuple[Any, ...]] = (None, False, 0, 0.0, "", [], {})
_NOT_SERVED: Final[Mapping[str, tuple[Any, ...]]] = {
    **dict.fromkeys(
        _names(
            """use_beam_search echo include_stop_str_in_output bad_words allowed_token_ids logits_processors
        logits_processor custom_logit_processor custom_params documents chat_template structural_tag
        guided_whitespace_pattern return_tokens_as_token_ids return_hidden_states stop_regex no_stop_trim lora_path
        lora session_params mm_processor_kwargs media_io_kwargs thinking_token_budget kv_transfer_params vllm_xargs
        mirostat dynatemp_range xtc_probability dry_multiplier n_probs post_sampling_probs samplers t_max_predict_ms
        n_predict top_a audio mcp_servers"""
        ),
        _NOTHING,
    ),
    "prompt_logprobs": (None, False),
    "web_search_options": (None,),
    "modalities": (None, [], ["text"]),
    "best_of": (None, 1),
    "skip_special_tokens": (None, True),
    "include_reasoning": (None, True),
    "separate_reasoning": (None, True),
    "add_special_tokens": (None, False),
    "truncate_prompt_tokens": (None, -1),
    "repeat_last_n": (None, -1),
    "length_penalty": (None, 1, 1.0),
    "typical_p": (None, 0, 1, 1.0),
    "tfs_z": (None, 1, 1.0),
    "top_n_sigma": (None, -1, -1.0, 0),
}
"""Fields that are known and not served, each with the values that ask for nothing."""


def passed_on(body: Mapping[str, Any], but: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields of a body that its dialect hands to the chat request as they are.

    Args:
        body: the body of a request.
        but: fields that mean something else in this dialect.
    """
    return {
        name: value
        for name, value in body.items()
        if value is not None and name not in but and (name in SERVED or name in TEMPLATE or name in _NOT_SERVED)
    }


def refuse_not_served(body: Mapping[str, Any]) -> None:
    """Refuse a chat request that asks for something which is not served.

    Raises:
        BadRequestError: names the field.
    """
    for name, value in body.items():
        if name in _NOT_SERVED and not any(type(value) is type(one) and value == one for one in _NOT_SERVED[name]):
            raise BadRequestError(f"{name} is not served here: leave it out", param=name)


def unknown_fields(body: Mapping[str, Any], known: Collection[str]) -> list[str]:
    """Return the fields of a body that have no effect because nothing here knows them.

    Args:
        body: the body of a request.
        known: the fields of its dialect.
    """
    others = (known, SERVED, TEMPLATE, _NOT_SERVED, _INDIFFERENT)
    return [name for name, value in body.items() if value is not None and not any(name in names for names in others)]
