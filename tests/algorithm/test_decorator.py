"""`@algo` and the base class: who gets what, and what may block."""

from __future__ import annotations

import asyncio
import threading

import pytest

from mini_agentic_rl import (
    Algorithm,
    InMemoryLightningStore,
    PromptTemplate,
    TracerTraceToTriplet,
    TraceToMessages,
    Trainer,
    algo,
    rollout,
)
from mini_agentic_rl.algorithm import AlgorithmContext

RESOURCES = {"p": PromptTemplate(template="x")}


@rollout
async def agent(task):
    return float(task)


def test_a_function_gets_what_it_names_and_keywords_take_the_rest():
    seen = {}

    @algo
    async def open_ended(*, store, train_dataset, val_dataset, patience=3, **rest):
        seen.update(rest, store=store, tasks=(train_dataset, val_dataset), patience=patience)

    store, adapter = InMemoryLightningStore(), TraceToMessages()
    trainer = Trainer(algorithm=open_ended, store=store, adapter=adapter, initial_resources=RESOURCES, n_runners=1)
    trainer.fit(agent, [1], val_dataset=[2])
    given = {"llm_proxy": None, "adapter": adapter, "initial_resources": RESOURCES, "logger": trainer.logger}
    assert seen == {"store": store, "tasks": ([1], [2]), "patience": 3, **given}


def test_an_algorithm_that_names_less_is_given_less():
    seen = {}

    @algo
    def plain(store, adapter, initial_resources):
        seen.update(adapter=adapter, initial_resources=initial_resources)

    with pytest.raises(TypeError, match="takes no val_dataset"):
        Trainer(algorithm=plain, n_runners=1).fit(agent, None, val_dataset=[2])
    Trainer(algorithm=plain, n_runners=1).fit(agent, None)
    assert isinstance(seen["adapter"], TracerTraceToTriplet)
    assert seen["initial_resources"] is None


def test_an_argument_that_cannot_be_given_is_refused_at_once():
    with pytest.raises(TypeError, match="'wisdom'"):

        @algo
        def wants(store, wisdom): ...


def test_the_decorated_function_is_still_itself():
    @algo
    def named(store):
        """What it does."""
        return store

    assert named(7) == 7
    assert (named.__name__, named.__doc__) == ("named", "What it does.")
    assert not named.is_async()

    async def coroutine(store): ...

    assert algo(coroutine).is_async()


def test_a_sync_algorithm_may_block_and_may_run_a_loop_of_its_own():
    rewards = []

    @algo
    def blocking(store, train_dataset):
        async def work():
            queued = [await store.enqueue_rollout(input=task, mode="train") for task in train_dataset]
            ids = [one.rollout_id for one in queued]
            ended = await store.wait_for_rollouts(rollout_ids=ids, timeout=20)
            rewards.extend(one.status for one in ended)

        asyncio.run(work())

    Trainer(algorithm=blocking, n_runners=2).fit(agent, [1, 2, 3])
    assert rewards == ["succeeded"] * 3


class Waits(Algorithm):
    """Blocks until somebody on the event loop lets it go. Sets nothing up, like many a class of users."""

    def __init__(self):
        self.gate = threading.Event()

    def run(self, train_dataset=None, val_dataset=None):
        if not self.gate.wait(20):
            raise TimeoutError("the loop was blocked")
        if train_dataset is None:
            raise LookupError("no tasks")
        return len(train_dataset)


async def test_a_sync_run_leaves_the_event_loop_to_others():
    algorithm = Waits()
    asyncio.get_running_loop().call_later(0.05, algorithm.gate.set)
    assert await algorithm.execute([1, 2]) == 2
    with pytest.raises(LookupError, match="no tasks"):
        await algorithm.execute()


async def test_a_cancelled_sync_run_is_given_up_at_once():
    algorithm = Waits()
    task = asyncio.ensure_future(algorithm.execute([1]))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    algorithm.gate.set()


def test_a_function_runs_without_a_trainer_and_needs_a_store_only_if_it_names_one():
    @algo
    def counts(train_dataset, adapter, logger):
        logger.log({"rows": 2}, step=0)
        return len(train_dataset), adapter

    @algo
    def stores(store):
        return store

    assert counts.run([1, 2]) == (2, None)
    with pytest.raises(ValueError, match="no store yet"):
        stores.run()


def test_without_a_trainer_the_setters_give_what_is_needed():
    algorithm, store, adapter = Waits(), InMemoryLightningStore(), TraceToMessages()
    with pytest.raises(ValueError, match="no store yet"):
        algorithm.get_store()
    with pytest.raises(ValueError, match="no adapter"):
        algorithm.get_adapter()
    with pytest.raises(ValueError, match="no trainer"):
        algorithm.get_trainer()
    assert algorithm.get_llm_proxy() is None
    assert algorithm.get_initial_resources() is None
    algorithm.set_adapter(adapter)
    algorithm.set_initial_resources(RESOURCES)
    algorithm.set_store(store)
    assert algorithm.get_adapter() is adapter
    assert algorithm.get_store() is store
    assert algorithm.get_initial_resources() == RESOURCES
    other = TracerTraceToTriplet()
    algorithm.set_adapter(other)
    assert algorithm.context.adapter is other


def test_a_second_run_gets_what_setters_gave_and_nothing_of_the_first_run():
    class Learner(Algorithm):
        def run(self, train_dataset=None, val_dataset=None):
            """Do nothing."""

    learner = Learner()
    learner.set_llm_proxy("proxy")
    learner.bind(AlgorithmContext(store="first", checkpoints="folder", resume=True, num_epochs=3, trained_agents="a"))
    learner.bind(AlgorithmContext(store="second"))
    context = learner.context
    assert (context.store, context.llm_proxy) == ("second", "proxy")
    assert (context.checkpoints, context.resume, context.num_epochs, context.trained_agents) == (
        None,
        False,
        None,
        None,
    )
