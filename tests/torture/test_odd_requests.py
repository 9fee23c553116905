"""Every field of a request with values of the wrong type and with odd text: a client's fault is never the server's."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest

from .conftest import Attack
from .neighbours import Served, served
from .servers import GATEWAY, SCORES, STORE

TOOL: Final = {"type": "function", "function": {"name": "add", "description": "a", "parameters": {"type": "object"}}}
CALL: Final = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
CHAT: Final = {
    "model": "tiny",
    "messages": [
        {"role": "system", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "a"},
        {"role": "tool", "content": "1", "tool_call_id": "c1", "name": "add"},
    ],
    "tools": [TOOL],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 1,
    "min_p": 0.0,
    "max_tokens": 2,
    "max_completion_tokens": 2,
    "n": 1,
    "stop": ["a"],
    "seed": 1,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": {"1": 1.0},
    "logprobs": True,
    "top_logprobs": 1,
    "stream": False,
    "stream_options": {"include_usage": True},
    "response_format": {"type": "text"},
    "return_token_ids": True,
    "ignore_eos": False,
    "user": "a",
    "metadata": {"a": "b"},
}
ANTHROPIC: Final = {
    "model": "tiny",
    "max_tokens": 2,
    "system": [{"type": "text", "text": "a"}],
    "messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "1"}]},
    ],
    "tools": [{"name": "add", "description": "a", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "auto"},
    "stop_sequences": ["a"],
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 1,
    "stream": False,
    "thinking": {"type": "disabled"},
    "metadata": {"user_id": "a"},
}
RESPONSES: Final = {
    "model": "tiny",
    "instructions": "a",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
    ],
    "tools": [{"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}],
    "tool_choice": "auto",
    "max_output_tokens": 2,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_logprobs": 0,
    "text": {"format": {"type": "text"}},
    "reasoning": {"effort": None},
    "store": True,
    "stream": False,
    "previous_response_id": None,
    "metadata": {"a": "b"},
    "parallel_tool_calls": True,
    "truncation": "disabled",
    "user": "a",
}
TEXT: Final = {"prompt": "a", "response": "b", "tools": [TOOL]}
SPAN: Final = {
    "rollout_id": "r",
    "attempt_id": "a",
    "sequence_id": 1,
    "trace_id": "1" * 32,
    "span_id": "1" * 16,
    "parent_id": None,
    "name": "a",
    "status": {"status_code": "OK"},
    "attributes": {"a": 1},
    "events": [],
    "links": [],
    "start_time": 1.0,
    "end_time": 2.0,
    "context": None,
    "parent": None,
    "resource": {"attributes": {}, "schema_url": ""},
}
TASK: Final = {"input": {"a": 1}, "mode": "train", "config": {"max_attempts": 1}, "metadata": {"sampling_seed": 1}}
ROUTES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "gateway": (
        GATEWAY,
        {
            "/v1/chat/completions": CHAT,
            "/v1/messages": ANTHROPIC,
            "/v1/messages/count_tokens": ANTHROPIC,
            "/v1/responses": RESPONSES,
            "/v1/responses/input_tokens": RESPONSES,
        },
    ),
    "scores": (
        SCORES,
        {
            "/score": TEXT,
            "/score/batch": {"items": [TEXT]},
            "/score-pair": {"prompt": "a", "chosen": [{"role": "assistant", "content": "a"}], "rejected": "b"},
            "/score-pair/batch": {"items": [{"prompt": "a", "response_a": "a", "response_b": "b"}]},
        },
    ),
    "store": (
        STORE,
        {
            "/v1/agl/queues/rollouts/enqueue": {"rollouts": [TASK]},
            "/v1/agl/queues/rollouts/dequeue": {"limit": 1, "worker_id": "w"},
            "/v1/agl/rollouts": TASK,
            "/v1/agl/rollouts/search": {"status_in": ["queuing"], "rollout_id_in": ["r"], "limit": 1, "offset": 0},
            "/v1/agl/listings/rollouts": {"status_in": ["queuing"], "reward_min": 0.5, "before": 1, "limit": 1},
            "/v1/agl/listings/groups": {"before": 1, "limit": 1},
            "/v1/agl/spans": SPAN,
            "/v1/agl/spans/batch": {"spans": [SPAN]},
            "/v1/agl/spans/next": {"rollout_id": "r", "attempt_id": "a"},
            "/v1/agl/workers/w": {"heartbeat_stats": {"a": 1}},
            "/v1/agl/resources": {"a": {"resource_type": "prompt_template", "template": "a", "engine": "f-string"}},
        },
    ),
}

ODD: Final = (
    "null",
    "true",
    "-1",
    "0",
    "1e400",
    "-1e-320",
    "NaN",
    str(2**63),
    str(10**400),
    '""',
    '"x"',
    r'"\ud800"',
    r'"\u0000\u001b[31m"',
    '"' + "é" * 3000 + '"',
    "[]",
    "[[]]",
    "{}",
    r'{"\udfff": {"a": []}}',
    '[{"role": "user"}]',
    "[" * 90 + r'"\ud800"' + "]" * 90,
    "[" * 500 + r'"\ud800"' + "]" * 500,
    '{"a":' * 150 + "1" + "}" * 150,
    "[" * 50_000 + "]" * 50_000,
)
"""JSON texts that take the place of a field."""
_MARK: Final = "the field that is replaced"


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the places of a body, itself first."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*path, key))


def with_text(body: Any, path: tuple[Any, ...], text: str) -> bytes:
    """Return a body with a JSON text in one of its places."""
    if not path:
        return text.encode()
    changed = copy.deepcopy(body)
    part = changed
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = _MARK
    return json.dumps(changed).replace(json.dumps(_MARK), text).encode()


@pytest.fixture(scope="module", params=ROUTES)
def target(request: pytest.FixtureRequest) -> Iterator[tuple[Served, dict[str, Any]]]:
    program, routes = ROUTES[request.param]
    with served(program) as server:
        yield server, routes


def test_odd_values_in_every_field(attack: Attack, target: tuple[Served, dict[str, Any]]) -> None:
    server, routes = target
    tries = [(path, body, place, odd) for path, body in routes.items() for place in places(body) for odd in ODD]
    random.Random(0).shuffle(tries)
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for path, body, place, odd in tries[: attack.times(len(tries))]:
            with attack.attempt(f"{path} with {place} = {odd[:40]}"):
                answer = client.post(
                    path, content=with_text(body, place, odd), headers={"Content-Type": "application/json"}
                )
                assert answer.status_code < 500, answer.text[:500]
                if answer.status_code >= 400:
                    told = answer.json()
                    assert told.get("detail") or told["error"]["message"], told
