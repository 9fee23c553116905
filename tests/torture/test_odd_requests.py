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
from .neighbours import served
from .servers import GATEWAY, SCORES, STORE

CHAT = r"""{
"model": "tiny", "messages": [
  {"role": "system", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "a"}]},
  {"role": "assistant", "content": null, "reasoning_content": "a", "tool_calls": [
    {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\"a\":1}"}}]},
  {"role": "tool", "content": "1", "tool_call_id": "c1", "name": "add"}],
"tools": [{"type": "function", "function": {"name": "add", "description": "a", "parameters": {"type": "object"}}}],
"tool_choice": "auto", "parallel_tool_calls": true,
"temperature": 1.0, "top_p": 1.0, "top_k": 1, "min_p": 0.0, "max_tokens": 2, "max_completion_tokens": 2, "n": 1,
"stop": ["a"], "seed": 1, "presence_penalty": 0.0, "frequency_penalty": 0.0, "logit_bias": {"1": 1.0},
"logprobs": true, "top_logprobs": 1, "stream": false, "stream_options": {"include_usage": true},
"response_format": {"type": "text"}, "return_token_ids": true, "ignore_eos": false,
"user": "a", "metadata": {"a": "b"}}"""
ANTHROPIC = """{
"model": "tiny", "max_tokens": 2, "system": [{"type": "text", "text": "a"}],
"messages": [{"role": "user", "content": "a"},
  {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}]},
  {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "1"}]}],
"tools": [{"name": "add", "description": "a", "input_schema": {"type": "object"}}], "tool_choice": {"type": "auto"},
"stop_sequences": ["a"], "temperature": 1.0, "top_p": 1.0, "top_k": 1, "stream": false,
"thinking": {"type": "disabled"}, "metadata": {"user_id": "a"}}"""
RESPONSES = """{
"model": "tiny", "instructions": "a", "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]},
  {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
  {"type": "function_call_output", "call_id": "c1", "output": "1"}],
"tools": [{"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": false}],
"tool_choice": "auto", "max_output_tokens": 2, "temperature": 1.0, "top_p": 1.0, "top_logprobs": 0,
"text": {"format": {"type": "text"}}, "reasoning": {"effort": null}, "store": true, "stream": false,
"previous_response_id": null, "metadata": {"a": "b"}, "parallel_tool_calls": true, "truncation": "disabled",
"user": "a"}"""
TEXT = """{
"prompt": "a", "response": "b",
"tools": [{"type": "function", "function": {"name": "add", "description": "a", "parameters": {"type": "object"}}}]}"""
TASK = '{"input": {"a": 1}, "mode": "train", "config": {"max_attempts": 1}, "metadata": {"sampling_seed": 1}}'
SPAN = """{
"rollout_id": "r", "attempt_id": "a", "sequence_id": 1, "trace_id": "11111111111111111111111111111111",
"span_id": "1111111111111111", "parent_id": null, "name": "a", "status": {"status_code": "OK"}, "attributes": {"a": 1},
"events": [], "links": [], "start_time": 1.0, "end_time": 2.0, "context": null, "parent": null,
"resource": {"attributes": {}, "schema_url": ""}}"""
ROUTES: Final[dict[str, tuple[str, dict[str, str]]]] = {
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
            "/score/batch": '{"items": [' + TEXT + "]}",
            "/score-pair": '{"prompt": "a", "chosen": [{"role": "assistant", "content": "a"}], "rejected": "b"}',
            "/score-pair/batch": '{"items": [{"prompt": "a", "response_a": "a", "response_b": "b"}]}',
        },
    ),
    "store": (
        STORE,
        {
            "/v1/agl/queues/rollouts/enqueue": '{"rollouts": [' + TASK + "]}",
            "/v1/agl/queues/rollouts/dequeue": '{"limit": 1, "worker_id": "w"}',
            "/v1/agl/rollouts": TASK,
            "/v1/agl/rollouts/search": '{"status_in": ["queuing"], "rollout_id_in": ["r"], "limit": 1, "offset": 0}',
            "/v1/agl/listings/rollouts": '{"status_in": ["queuing"], "reward_min": 0.5, "before": 1, "limit": 1}',
            "/v1/agl/listings/groups": '{"before": 1, "limit": 1}',
            "/v1/agl/spans": SPAN,
            "/v1/agl/spans/batch": '{"spans": [' + SPAN + "]}",
            "/v1/agl/spans/next": '{"rollout_id": "r", "attempt_id": "a"}',
            "/v1/agl/workers/w": '{"heartbeat_stats": {"a": 1}}',
            "/v1/agl/resources": '{"a": {"resource_type": "prompt_template", "template": "a", "engine": "f-string"}}',
        },
    ),
}
"""For each server its program, and a sound body of each route, as JSON."""

ODD: Final = (
    *("null", "true", "-1", "0", "1e400", "-1e-320", "NaN", str(2**63), str(10**400)),
    *('""', '"x"', r'"\ud800"', r'"\u0000\u001b[31m"', '"' + "é" * 3000 + '"'),
    *("[]", "[[]]", "{}", r'{"\udfff": {"a": []}}', '[{"role": "user"}]'),
    *("[" * depth + r'"\ud800"' + "]" * depth for depth in (90, 500)),
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


@pytest.mark.parametrize("target", ROUTES)
def test_odd_values_in_every_field(attack: Attack, target: str) -> None:
    program, routes = ROUTES[target]
    bodies = {path: json.loads(body) for path, body in routes.items()}
    tries = [(path, body, place, odd) for path, body in bodies.items() for place in places(body) for odd in ODD]
    random.Random(0).shuffle(tries)
    with served(program) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        for path, body, place, odd in tries[: attack.times(len(tries))]:
            with attack.attempt(f"{path} with {place} = {odd[:40]}"):
                content = with_text(body, place, odd)
                answer = client.post(path, content=content, headers={"Content-Type": "application/json"})
                assert answer.status_code < 500, answer.text[:500]
                if answer.status_code >= 400:
                    refusal = answer.json()
                    assert refusal.get("detail") or refusal["error"]["message"], refusal
