"""Calls of the model that is trained, under a tracer that records calls of models itself."""

from __future__ import annotations

import asyncio

from letters import TASKS, CountLetters, Letters, algorithm

from mini_agentic_rl import AgentOpsTracer, InMemoryLightningStore, Trainer
from mini_agentic_rl.metrics import MetricsLogger


def test_the_gateway_alone_records_the_calls_that_it_answers():
    store = InMemoryLightningStore()
    trainer = Trainer(
        algorithm=algorithm(total_steps=1, tasks_per_step=1, samples_per_prompt=2, max_new_tokens=2, eval_size=1),
        hooks=[CountLetters()],
        n_runners=2,
        tracer=AgentOpsTracer(),
        store=store,
        logger=MetricsLogger(),
    )
    trainer.fit(Letters(), TASKS[:1], val_dataset=TASKS[:1])

    async def calls() -> list[int]:
        found = []
        for rollout in await store.query_rollouts():
            spans = await store.query_spans(rollout.rollout_id)
            found.append(len([span for span in spans if span.name == "openai.chat.completion"]))
        return found

    assert asyncio.run(calls()) == [1, 1, 1, 1]  # measured before, two samples, measured after
