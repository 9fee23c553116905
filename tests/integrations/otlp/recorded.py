"""A rollout as a run records it: calls by the gateway's own recorder, what the agent emits by a tracer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from mini_agentic_rl import emit_message, emit_reward, operation
from mini_agentic_rl.gateway import Caller
from mini_agentic_rl.gateway.completion.record import RecordedAnswer, record_answer
from mini_agentic_rl.store import LightningStore
from mini_agentic_rl.tracer import OtelTracer, Tracer

CALCULATOR = {"type": "function", "function": {"name": "calculate", "parameters": {"type": "object", "properties": {}}}}
ASKED = [
    {"role": "system", "content": "You calculate."},
    {"role": "user", "content": [{"type": "text", "text": "What is 6 * 7?"}]},
]
CALLING = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "call-1", "type": "function", "function": {"name": "calculate", "arguments": '{"expression": "6 * 7"}'}}
    ],
}
TOLD = {"role": "tool", "tool_call_id": "call-1", "content": "42"}
ANSWER = {"role": "assistant", "content": "It is 42.", "reasoning_content": "Six times seven."}


async def two_calls(
    store: LightningStore, tracer: Tracer | None = None, *, status: str = "succeeded", **how: Any
) -> str:
    """Record a rollout with a call of a tool, an answer and a reward, and end it; return its id."""
    rollout = await store.start_rollout({"question": "What is 6 * 7?"})
    rollout_id, attempt_id = rollout.rollout_id, rollout.attempt.attempt_id
    tracer = tracer or OtelTracer()
    with contextlib.suppress(ZeroDivisionError):
        async with tracer.trace_attempt(store, rollout_id, attempt_id):
            emit_message("starting")
            await call(store, rollout_id, attempt_id, ASKED, CALLING, "tool_calls", **how)
            with operation(name="look up"):
                time.sleep(0.002)
            await call(store, rollout_id, attempt_id, [*ASKED, CALLING, TOLD], ANSWER, "stop", **how)
            emit_reward({"correct": 1.0, "form": 0.5}, primary_key="correct", final=True)
    metadata = {"error": "the agent: ValueError: no"} if status == "failed" else {}
    await store.update_attempt(rollout_id, attempt_id, status=status, metadata=metadata)
    return rollout_id


async def call(
    store: LightningStore,
    rollout_id: str,
    attempt_id: str,
    messages: Sequence[dict[str, Any]],
    answer: Mapping[str, Any],
    reason: str,
    **how: Any,
) -> None:
    start = time.time()
    time.sleep(0.002)
    told = RecordedAnswer(
        caller=Caller((rollout_id, attempt_id), **how),
        response_id=f"chatcmpl-{len(messages)}",
        model="policy",
        messages=list(messages),
        tools=[CALCULATOR],
        settings={"gen_ai.request.temperature": 0.7, "gen_ai.request.max_tokens": 32, "gen_ai.request.seed": 3},
        start_time=start,
        index=0,
        message=dict(answer),
        finish_reason=reason,
        prompt_ids=list(range(10 * len(messages))),
        token_ids=[1, 2, 3],
        logprobs=[-0.1, -0.2, -0.3],
        version=4,
    )
    await record_answer(store, told)
