"""`Baseline`: every task through the agent, a bounded queue, and a log of what came of it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest
from openai import AsyncOpenAI

from mini_agentic_rl import (
    Baseline,
    InMemoryLightningStore,
    TraceToMessages,
    Trainer,
    emit_message,
    rollout,
)
from mini_agentic_rl.gateway.proxy import LLMProxy

LOG = "mini_agentic_rl.algorithm.baseline"


@rollout
async def agent(task):
    emit_message(f"hello {task}")
    if task == "bad":
        raise RuntimeError("cannot do it")
    return 0.5


def _run(algorithm, train=None, val=None, **options):
    store = options.pop("store", None) or InMemoryLightningStore()
    chosen = options.pop("agent", agent)
    Trainer(algorithm=algorithm, store=store, n_runners=2, **options).fit(chosen, train, val_dataset=val)
    return asyncio.run(store.query_rollouts())


def test_every_task_runs_in_its_mode_as_often_as_there_are_epochs_and_a_failure_is_logged(caplog):
    algorithm = Baseline(n_epochs=2)
    with caplog.at_level(logging.INFO, LOG):
        rollouts = _run(algorithm, ["a", "bad"], ["c"])
    assert "cannot do it" in caplog.text
    counted = Counter((rollout.input, rollout.mode) for rollout in rollouts)
    assert counted == {("a", "train"): 2, ("bad", "train"): 2, ("c", "val"): 2}
    assert algorithm.summary == {
        "rollouts": {"succeeded": 4, "failed": 2},
        "reward": {"train": 0.5, "val": 0.5},
    }


def test_one_data_set_is_split_only_when_that_is_asked_for():
    tasks = [str(number) for number in range(5)]
    assert {rollout.mode for rollout in _run(Baseline(), tasks)} == {"train"}
    modes = {rollout.input: rollout.mode for rollout in _run(Baseline(train_split=0.6), tasks)}
    assert modes == {"0": "train", "1": "train", "2": "train", "3": "val", "4": "val"}
    given = _run(Baseline(train_split=0.6), tasks[:2], tasks[2:])
    assert Counter(rollout.mode for rollout in given) == {"train": 2, "val": 3}


def test_no_more_rollouts_wait_than_allowed():
    class Watched(InMemoryLightningStore):
        longest = 0

        async def enqueue_many_rollouts(self, rollouts):
            added = await super().enqueue_many_rollouts(rollouts)
            waiting = await self.query_rollouts(status_in=["queuing", "requeuing"])
            self.longest = max(self.longest, len(waiting))
            return added

    @rollout
    async def slow(task):
        await asyncio.sleep(0.02)
        return 1.0

    store = Watched()
    rollouts = _run(Baseline(max_queue_length=3, polling_interval=0.05), list("abcdefghijkl"), store=store, agent=slow)
    assert len(rollouts) == 12
    assert 1 <= store.longest <= 3


@pytest.mark.parametrize(
    ("verbosity", "shown", "hidden"),
    [
        ("none", [], ["agentlightning.message"]),
        ("keys", ["span", "agentlightning.message.body"], ["hello a"]),
        ("key_values", ["agentlightning.message.body='hello a'"], []),
    ],
)
def test_spans_are_logged_as_verbosely_as_asked(caplog, verbosity, shown, hidden):
    with caplog.at_level(logging.INFO, LOG):
        _run(Baseline(span_verbosity=verbosity), ["a"], adapter=TraceToMessages())
    for text in [*shown, "succeeded: reward 0.5", "attempt 1", "TraceToMessages makes of it []"]:
        assert text in caplog.text
    for text in hidden:
        assert text not in caplog.text


def test_a_proxy_runs_as_long_as_the_run_and_is_what_the_agent_gets():
    @rollout
    async def asks(task, llm):
        async with AsyncOpenAI(api_key="none", base_url=llm.endpoint) as client:
            return float([model.id async for model in client.models.list()] == ["answerer"])

    proxy = LLMProxy(model_list=[{"model_name": "answerer", "base_url": "http://127.0.0.1:9/v1", "api_key": "none"}])
    algorithm = Baseline()
    _run(algorithm, ["a"], agent=asks, llm_proxy=proxy)
    assert algorithm.summary["reward"] == {"train": 1.0}
    assert not proxy.is_running()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_epochs", 0),
        ("train_split", 1.0),
        ("train_split", 0.0),
        ("polling_interval", 0),
        ("max_queue_length", 0),
        ("span_verbosity", "all"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        Baseline(**{name: value})
