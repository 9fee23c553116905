"""The styles in which people write agents and hooks, each run by a real runner on a real store."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from mini_agentic_rl import Hook, InMemoryLightningStore, LitAgent, LitAgentRunner, Rollout, Task, types
from mini_agentic_rl.emitter import find_final_reward, find_trainable_agents, get_reward_value, is_rollout_reward
from mini_agentic_rl.litagent import rollout as rollout_agent
from mini_agentic_rl.tracer import DummyTracer, OtelTracer, Tracer
from mini_agentic_rl.types import AttemptedRollout, Span

ROW = {"question": "2 + 3", "answer": "5"}


async def _run(agent: LitAgent[Any], *hooks: Hook, row: Any = ROW) -> tuple[Rollout, list[Span]]:
    store = InMemoryLightningStore()
    runner = LitAgentRunner()
    with runner.run_context(agent=agent, store=store, hooks=hooks):
        ended = await runner.step(row)
    return ended, list(await store.query_spans(ended.rollout_id, "latest"))


class Solver(LitAgent):
    """As in the tutorials: it is given a client, takes the task's input, and returns a rollout with its output."""

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(**options)
        self.client = client

    def rollout(self, task: Task) -> Rollout:
        answer = self.client(task.input["question"])
        return Rollout(input=task.input, output=answer, traces=["anything"])


class RewardHook(Hook):
    def on_rollout_end(self, rollout: Rollout, task: Task) -> Rollout:
        rollout.metadata["reward"] = 1.0 if rollout.output == task.input["answer"] else 0.0
        return rollout


@pytest.mark.parametrize(("answer", "expected"), [("5", 1.0), ("6", 0.0)])
async def test_an_agent_that_returns_its_output_is_scored_by_a_hook_that_sets_the_reward(
    answer: str, expected: float
) -> None:
    ended, spans = await _run(Solver(lambda question: answer), RewardHook())
    assert ended.status == "succeeded"
    assert find_final_reward(spans) == expected
    assert [is_rollout_reward(span) for span in spans if get_reward_value(span) is not None] == [True]


async def test_the_annotation_decides_whether_the_task_is_the_row() -> None:
    seen: dict[str, Any] = {}

    class Plain(LitAgent):
        def rollout(self, task, rollout):
            seen["plain"] = task

    class Dotted(LitAgent):
        async def rollout_async(self, task: types.Task, rollout: AttemptedRollout):
            seen["dotted"] = (type(task), task.input, task["question"], task.rollout_id == rollout.rollout_id)

    @rollout_agent
    def function(task: Task):
        seen["function"] = task.input

    class Rows(Hook):
        def on_trace_end(self, *, task):
            seen["hook"] = task

    await _run(Plain(), Rows())
    await _run(Dotted())
    await _run(function)
    assert seen["plain"] == seen["hook"] == ROW
    assert seen["dotted"] == (Task, ROW, "2 + 3", True)
    assert seen["function"] == ROW


async def test_a_foreign_class_of_the_same_name_is_no_task_of_ours() -> None:
    namespace: dict[str, Any] = {"LitAgent": LitAgent, "seen": []}
    exec(
        "from __future__ import annotations\n"
        "class Task(dict): ...\n"
        "class Agent(LitAgent):\n"
        "    def rollout(self, task: Task):\n"
        "        seen.append(task)\n",
        namespace,
    )
    await _run(namespace["Agent"]())
    assert namespace["seen"] == [ROW]


async def test_the_reward_may_be_set_by_the_agent_and_is_replaced_by_a_later_hook() -> None:
    class Sets(LitAgent):
        def rollout(self, task, rollout):
            rollout.metadata["reward"] = 0.25

    class Replaces(Hook):
        async def on_rollout_end(self, *, rollout: Rollout):
            rollout.metadata["reward"] = rollout.metadata["reward"] + 0.5

    class Looks(Hook):
        async def on_rollout_end(self, *, spans):
            self.seen = find_final_reward(spans)

    looks = Looks()
    _, spans = await _run(Sets(), Replaces(), looks)
    assert [get_reward_value(span) for span in spans if get_reward_value(span) is not None] == [0.25, 0.75]
    assert looks.seen == 0.75


async def test_a_reward_that_was_there_before_is_not_emitted_again() -> None:
    class Looks(Hook):
        async def on_rollout_end(self, *, rollout: Rollout):
            return rollout

    class Sets(LitAgent):
        def rollout(self, task, rollout):
            rollout.metadata["reward"] = 0.0
            return rollout

    _, spans = await _run(Sets(), Looks(), Looks())
    assert [get_reward_value(span) for span in spans if get_reward_value(span) is not None] == [0.0]


async def test_a_reward_that_is_no_number_fails_the_attempt_and_says_so() -> None:
    class Sets(LitAgent):
        def rollout(self, task, rollout):
            rollout.metadata["reward"] = "good"

    with pytest.raises(TypeError, match="must be a number"):
        await _run(Sets())


async def test_spans_in_a_returned_rollout_join_the_trace() -> None:
    class Traces(LitAgent):
        def rollout(self, task: Task):
            made = Span.from_attributes(attributes={"step": 1}, name="mine")
            return Rollout(input=task.input, output="x", traces=[made])

    ended, spans = await _run(Traces())
    assert ended.status == "succeeded"
    assert [span.attributes["step"] for span in spans if span.name == "mine"] == [1]


def test_a_rollout_needs_its_id_unless_it_holds_an_output() -> None:
    with pytest.raises(ValueError, match="rollout_id"):
        Rollout(input="x", start_time=0.0)
    made = Rollout(input="x", output="y")
    assert (made.output, made.rollout_id, made.metadata) == ("y", "", {"output": "y"})
    stored = Rollout(rollout_id="ro-1", input="x", start_time=0.0)
    stored.output = 3
    assert stored.output == Rollout.model_validate_json(stored.model_dump_json()).output == 3


def test_trained_agents_may_be_given_in_every_way() -> None:
    class OfClass(LitAgent):
        trained_agents = "solver"

        def rollout(self, task): ...

    class WithoutSuper(LitAgent):
        def __init__(self) -> None:
            self.mine = True

        def rollout(self, task): ...

    @rollout_agent(trained_agents="planner")
    def function(task): ...

    assert OfClass().trained_agents == "solver"
    assert OfClass(trained_agents="other").trained_agents == "other"
    assert WithoutSuper().trained_agents is None
    assert function.trained_agents == "planner"


class Marks(LitAgent):
    """Marks one of its agents, without having imported an emitter."""

    def rollout(self, task: str, rollout: AttemptedRollout) -> None:
        rollout.mark_agent_as_trainable("assistant")


def _rollout() -> Rollout:
    return Rollout(rollout_id="ro-1", input="task", start_time=0.0)


@pytest.mark.parametrize("tracer", [OtelTracer(), DummyTracer()])
async def test_a_mark_is_on_the_rollout_and_in_the_trace(tracer: Tracer) -> None:
    rollout = _rollout()
    async with tracer.trace_context():
        rollout.mark_agent_as_trainable("assistant")
        rollout.mark_agent_as_trainable("planner")
        rollout.mark_agent_as_trainable("assistant")
    assert rollout.metadata["trainable_agents"] == ["assistant", "planner"]
    assert find_trainable_agents(tracer.get_last_trace()) == ["assistant", "planner"]


def test_a_mark_outside_of_a_rollout_says_who_knows_of_it(caplog: pytest.LogCaptureFixture) -> None:
    rollout = _rollout()
    with caplog.at_level(logging.WARNING):
        rollout.mark_agent_as_trainable("assistant")
    assert rollout.metadata["trainable_agents"] == ["assistant"]
    assert "is marked outside of its rollout" in caplog.text
    with pytest.raises(ValueError, match="name of an agent"):
        rollout.mark_agent_as_trainable("")


async def test_a_mark_reaches_the_store() -> None:
    store = InMemoryLightningStore()
    await store.enqueue_rollout("task")
    runner = LitAgentRunner(DummyTracer(), max_rollouts=1)
    with runner.run_context(agent=Marks(), store=store, worker_id=0):
        await runner.iter()
    (ended,) = await store.query_rollouts()
    assert ended.status == "succeeded"
    assert find_trainable_agents(await store.query_spans(ended.rollout_id, "latest")) == ["assistant"]
