"""Spans as the gateway and the emitters write them."""

import json
from typing import Any

from mini_agentic_rl.emitter import emit_reward
from mini_agentic_rl.semconv import CompletionSpanAttributes as Key
from mini_agentic_rl.types import Span


def completion(
    sequence_id: int,
    prompt: list[int],
    output: list[int],
    *,
    response_id: str | None = None,
    rollout_id: str = "r",
    attempt_id: str = "a",
    **more: Any,
) -> Span:
    attributes = {
        Key.PROMPT_TOKEN_IDS: prompt,
        Key.RESPONSE_TOKEN_IDS: output,
        Key.RESPONSE_LOGPROBS: [-0.5] * len(output),
        Key.RESPONSE_ID: response_id or f"resp-{sequence_id}",
        Key.REQUEST_MODEL: "m",
        Key.FINISH_REASONS: ["stop"],
        Key.INPUT_MESSAGES: json.dumps([{"role": "user", "content": f"question {sequence_id}"}]),
        Key.OUTPUT_MESSAGES: json.dumps({"role": "assistant", "content": f"answer {sequence_id}"}),
    }
    times = {name: more.pop(name) for name in ("start_time", "end_time") if name in more}
    parent_id = more.pop("parent_id", None)
    return Span.from_attributes(
        name=Key.SPAN_NAME,
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=sequence_id,
        parent_id=parent_id,
        attributes={**attributes, **more},
        **times,
    )


def reward(sequence_id: int, value: float, parent_id: str | None = None) -> Span:
    core = emit_reward(value, propagate=False)
    return Span.from_core_fields(core, rollout_id="r", attempt_id="a", sequence_id=sequence_id, parent_id=parent_id)


def plain(sequence_id: int, name: str, start: float, end: float, **attributes: Any) -> Span:
    return Span.from_attributes(
        name=name,
        rollout_id="r",
        attempt_id="a",
        sequence_id=sequence_id,
        start_time=start,
        end_time=end,
        attributes=attributes,
    )
