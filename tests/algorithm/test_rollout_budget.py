"""A rollout that wanted more of the model than it may have: what the training reports, and what the store holds."""

from __future__ import annotations

import asyncio

import openai
from letters import TASKS, CountLetters, Kept, Letters, algorithm

from mini_agentic_rl import InMemoryLightningStore, Trainer
from mini_agentic_rl.gateway.settings import GatewayLimits
from mini_agentic_rl.semconv import AGL_EXCEPTION, ROLLOUT_BUDGET_EXCEEDED

REASON = "the rollout has made all its LLM calls (max_rollout_calls=2)"


class Runaway(Letters):
    """Never stops by itself; for some tasks it swallows the refusal, and answers with what it has."""

    async def rollout_async(self, task, resources, rollout):
        try:
            for _ in range(1000):
                await super().rollout_async(task, resources, rollout)
        except openai.PermissionDeniedError:
            if task["word"] == "go":
                raise


def test_a_runaway_agent_is_stopped_and_the_report_and_the_store_say_why():
    store, kept = InMemoryLightningStore(), Kept()
    trained = algorithm(
        total_steps=1,
        tasks_per_step=2,
        samples_per_prompt=2,
        seed=3,
        limits=GatewayLimits(max_rollout_calls=2),
    )
    Trainer(algorithm=trained, hooks=[CountLetters()], store=store, n_runners=4, logger=kept).fit(Runaway(), TASKS[:2])
    assert trained.summary["untrained"] == {f"attempt failed: {REASON}": 2}
    (step,) = [row for row in kept.rows if "rollout/over_budget" in row]
    assert (step["rollout/over_budget"], step["rollout/failed"]) == (4, 2)
    for rollout in asyncio.run(store.query_rollouts()):
        spans = list(asyncio.run(store.query_spans(rollout.rollout_id)))
        marks = [span for span in spans if span.attributes.get("exception.type") == ROLLOUT_BUDGET_EXCEEDED]
        assert [(mark.name, mark.attributes["exception.message"]) for mark in marks] == [(AGL_EXCEPTION, REASON)]
        assert sum("response_token_ids" in span.attributes for span in spans) == 2
