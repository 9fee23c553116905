"""Rollouts as runners leave them in a store."""

from __future__ import annotations

import json

from mini_agentic_rl.types import EnqueueRolloutRequest, Span


async def add_rollout(store, *, input, messages, reply, reward=None, fail=None, worker="w", metadata=None, **extra):
    """Put a rollout of one LLM call into a store, as a runner would; return its id."""
    (rollout,) = await store.enqueue_many_rollouts(
        [EnqueueRolloutRequest(input=input, mode="train", metadata=metadata or {})]
    )
    (claimed,) = await store.dequeue_many_rollouts(worker_id=worker)
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": claimed.attempt.attempt_id}
    call = {"gen_ai.input.messages": json.dumps(messages), "gen_ai.output.messages": json.dumps(reply), **extra}
    await store.add_span(_span(ids, 1, "openai.chat.completion", call))
    if reward is not None:
        given = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": reward}
        await store.add_span(_span(ids, 2, "agentlightning.annotation", given))
    await store.update_attempt(
        **ids, status="failed" if fail else "succeeded", **({"metadata": {"error": fail}} if fail else {})
    )
    return rollout.rollout_id


def _span(ids, number, name, attributes):
    return Span(
        **ids,
        sequence_id=number,
        trace_id="0" * 31 + "1",
        span_id=f"{number:016x}",
        name=name,
        start_time=1000.0 + number,
        end_time=1000.5 + number,
        attributes=attributes,
    )
