"""What a step records and reports: calls, budgets, how conversations went on, and its slowest rollouts."""

from __future__ import annotations

import asyncio

import openai
import pytest
from letters import TASKS, CountLetters, Kept, Letters, algorithm
from openai import AsyncOpenAI

from mini_agentic_rl import AgentOpsTracer, InMemoryLightningStore, LitAgent, Trainer
from mini_agentic_rl.algorithm.sampling import tail_of
from mini_agentic_rl.gateway.settings import GatewayLimits
from mini_agentic_rl.metrics import MetricsLogger
from mini_agentic_rl.semconv import AGL_EXCEPTION, ROLLOUT_BUDGET_EXCEEDED
from mini_agentic_rl.types import Rollout


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


class AsksAgain(LitAgent):
    """Two calls, the second after the first and the answer to it; in some tasks it writes the answer down changed."""

    async def rollout_async(self, task, resources, rollout):
        llm = resources["llm"]
        url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        messages = [{"role": "user", "content": task["word"]}]
        async with AsyncOpenAI(api_key="none", base_url=url) as client:
            for turn in range(2):
                reply = await client.chat.completions.create(
                    model=llm.model, messages=messages, **llm.sampling_parameters
                )
                content = reply.choices[0].message.content or ""
                changed = "changed " if task["word"] == "go" and turn == 0 else ""
                messages += [{"role": "assistant", "content": changed + content}, {"role": "user", "content": "More."}]
        rollout.metadata["reply"] = content


def test_each_step_tells_how_many_prompts_continued_began_and_forked_and_why():
    kept = Kept()
    trained = algorithm(total_steps=2, tasks_per_step=2, samples_per_prompt=3)
    tasks = [task for task in TASKS if task["word"] in ("hi", "go")]
    Trainer(algorithm=trained, hooks=[CountLetters()], n_runners=6, logger=kept).fit(AsksAgain(), tasks)
    steps = [row for row in kept.rows if "drift/continued" in row]
    assert len(steps) == 2
    for row in steps:
        drift = {name: value for name, value in row.items() if name.startswith("drift/") and value}
        assert drift == {"drift/rendered": 6, "drift/continued": 3, "drift/forked": 3, "drift/forked_edited": 3}


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


def _ended(*times: float) -> list[Rollout]:
    return [Rollout(rollout_id=str(n), input=None, start_time=0, end_time=time) for n, time in enumerate(times)]


@pytest.mark.parametrize(
    ("ends", "seconds"),
    [
        ([], 0),
        ([9.0], 0),  # no other one waited for it
        ([3.0, 1.0], 2),
        ([5.0, 5.0, 5.0], 0),
        ([*range(1, 8), 20], 13),
        ([*range(1, 16), 30], 16),  # an eighth of 16 is two: the last to end at 15 is among them
        ([*range(1, 16)], 1),
    ],
)
def test_the_tail_is_the_time_of_the_last_eighth_of_the_rollouts(ends, seconds):
    assert tail_of(_ended(*ends), 1000) == seconds


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_a_clock_that_is_set_makes_no_tail_longer_than_the_step(jump):
    assert 0 <= tail_of(_ended(1, 2, 3, 4 + jump), 4.5) <= 4.5
