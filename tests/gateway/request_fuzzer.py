"""Requests of every dialect, and what becomes of them at random: changed values, missing fields, broken bytes."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import dataclass
from typing import Any

from .samples import CALCULATOR, call_message, result_message

_SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}, "sure": {"type": "boolean"}},
    "required": ["answer", "sure"],
    "additionalProperties": False,
}
_PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
_FUNCTION = CALCULATOR["function"]
_CHAT = [
    {"messages": [{"role": "user", "content": "12+30?"}]},
    {"messages": [{"role": "system", "content": "Be terse."}, {"role": "user", "content": "hi"}], "n": 2, "seed": 7},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "stop": ["a", "the"], "top_p": 0.5},
    {"messages": [{"role": "user", "content": "12+30?"}], "tools": [CALCULATOR], "tool_choice": "required"},
    {"messages": [{"role": "user", "content": "12+30?"}, call_message(), result_message()], "tools": [CALCULATOR]},
    {
        "messages": [{"role": "user", "content": "hi"}],
        "logprobs": True,
        "top_logprobs": 3,
        "logit_bias": {"5": 3.0},
        "return_token_ids": True,
        "stream_options": {"include_usage": True},
    },
    {
        "messages": [{"role": "user", "content": "hi"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": _SCHEMA}},
    },
    {"messages": [{"role": "user", "content": "hi"}], "response_format": {"type": "json_object"}, "temperature": 0},
]
_RESPONSES = [
    {"input": "12+30?"},
    {"input": [{"role": "user", "content": "hi"}], "instructions": "Be terse.", "temperature": 0.5, "store": False},
    {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "12+30?"}]},
            {"type": "function_call", "call_id": "c", "name": "calculate", "arguments": '{"expression": "12+30"}'},
            {"type": "function_call_output", "call_id": "c", "output": "42"},
        ],
        "tools": [{"type": "function", **_FUNCTION}],
        "tool_choice": "auto",
    },
    {"input": "hi", "text": {"format": {"type": "json_schema", "name": "a", "strict": True, "schema": _SCHEMA}}},
    {"input": "hi", "previous_response_id": "resp_0", "include": ["message.output_text.logprobs"], "top_logprobs": 2},
]
_MESSAGES = [
    {"messages": [{"role": "user", "content": "12+30?"}]},
    {
        "system": [{"type": "text", "text": "Be terse."}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "12+30?"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Let me see."},
                    {"type": "tool_use", "id": "t", "name": "calculate", "input": {"expression": "12+30"}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "42"}]},
        ],
        "tools": [{"name": "calculate", "description": "x", "input_schema": _FUNCTION["parameters"]}],
        "tool_choice": {"type": "any"},
    },
    {"messages": [{"role": "user", "content": "hi"}], "stop_sequences": ["the"], "temperature": 0.3, "top_k": 5},
]
_BOUND = {"/v1/chat/completions": "max_tokens", "/v1/responses": "max_output_tokens", "/v1/messages": "max_tokens"}
SEEDS = {"/v1/chat/completions": _CHAT, "/v1/responses": _RESPONSES, "/v1/messages": _MESSAGES}
"""Valid requests by the path of their dialect."""

_MORE_FIELDS = (
    *("frequency_penalty", "ignore_eos", "max_completion_tokens", "metadata", "min_p", "parallel_tool_calls"),
    *("presence_penalty", "reasoning", "thinking", "user", "structured_outputs", "guided_json", "guided_choice"),
    *("grammar", "regex", "stop_token_ids", "min_tokens", "repetition_penalty", "chat_template_kwargs"),
    *("reasoning_effort", "continue_final_message", "add_generation_prompt", "prompt_logprobs"),
)
_FIELDS = sorted({key for bodies in SEEDS.values() for body in bodies for key in body} | {*_MORE_FIELDS})
_JUNK: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3.5, -0.0, 1e308, float("nan"), float("inf"), 2**63, -(2**70), 10**400),
    *("", " ", "x" * 300, "\ud800", "\x00", "🙂", "<|im_end|>", "</s>", "<tool_call>", '{"a":', "user", "required"),
    *([], {}, [None], [[]], {"type": "function"}, {"": ""}, {"role": "user"}, {"a": {"b": [1, {"c": None}]}}, _PICTURE),
]


@dataclass(frozen=True)
class FuzzedRequest:
    """What is sent."""

    path: str
    content: bytes
    leaves_after: float | None
    """Seconds after which the client hangs up; None if it waits for the end."""


class RequestFuzzer:
    """Makes requests for the dialects at `paths`, the same ones for the same seed.

    Args:
        prefixes: what may stand before a path: nothing, or an attempt's URL.
    """

    def __init__(self, paths: list[str], prefixes: list[str], seed: int) -> None:
        missing = [path for path in paths if path not in SEEDS]
        assert not missing, f"SEEDS holds no request for {missing}"
        self._paths = paths
        self._prefixes = prefixes
        self._random = random.Random(seed)

    def next(self) -> FuzzedRequest:
        choose = self._random
        path = choose.choice(self._paths)
        body = copy.deepcopy(choose.choice(SEEDS[path]))
        body |= {"model": "tiny", _BOUND[path]: choose.randint(1, 24), "stream": choose.random() < 0.5}
        for _ in range(choose.choice([0, 1, 1, 2, 4])):
            self._change(body)
        content = json.dumps(body).encode("utf-8", "surrogatepass")
        if choose.random() < 0.08:
            content = self._break(content)
        leaves = choose.uniform(0.0, 0.1) if choose.random() < 0.06 else None
        return FuzzedRequest(choose.choice(self._prefixes) + path, content, leaves)

    def _junk(self) -> Any:
        choose = self._random
        if choose.random() < 0.03:
            nested: Any = "deep"
            for _ in range(choose.choice([40, 400])):
                nested = [nested] if choose.random() < 0.5 else {"type": nested}
            return nested
        return copy.deepcopy(choose.choice(_JUNK))

    def _change(self, body: dict[str, Any]) -> None:
        choose = self._random
        if choose.random() < 0.25:
            body[choose.choice(_FIELDS)] = self._junk()
            return
        inside = choose.choice(list(_containers(body)))
        if isinstance(inside, dict) and inside:
            key = choose.choice(list(inside))
            if choose.random() < 0.3:
                del inside[key]
            else:
                inside[key] = self._junk()
        elif isinstance(inside, list):
            inside.insert(choose.randint(0, len(inside)), copy.deepcopy(choose.choice(inside or [None])))
            if choose.random() < 0.5:
                inside[choose.randrange(len(inside))] = self._junk()

    def _break(self, content: bytes) -> bytes:
        choose = self._random
        kind = choose.randrange(5)
        if kind == 0:
            return content[: choose.randrange(len(content))]
        if kind == 1:
            changed = bytearray(content)
            for _ in range(3):
                changed[choose.randrange(len(changed))] = choose.randrange(256)
            return bytes(changed)
        if kind == 2:
            return choose.randbytes(choose.randrange(200))
        if kind == 3:
            return b"[" * 100_000
        return content + content


def _containers(value: Any) -> Any:
    if isinstance(value, dict | list):
        yield value
        for item in value.values() if isinstance(value, dict) else value:
            yield from _containers(item)
