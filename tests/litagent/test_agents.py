"""Agents as classes and as functions, and the styles in which people write agents and hooks."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import numpy as np
import pytest
import torch

from mini_agentic_rl import Hook, InMemoryLightningStore, LitAgentRunner, Rollout, Task, types
from mini_agentic_rl.emitter import (
    emit_reward,
    find_final_reward,
    find_trainable_agents,
    get_reward_value,
    is_rollout_reward,
)
from mini_agentic_rl.litagent import LitAgent, arguments_for, llm_rollout, prompt_rollout, rollout
from mini_agentic_rl.tracer import DummyTracer, OtelTracer, Tracer
from mini_agentic_rl.types import LLM, Attempt, AttemptedRollout, PromptTemplate, ProxyLLM, Span

ATTEMPTED = AttemptedRollout(
    rollout_id="ro-1",
    input="task",
    start_time=0.0,
    attempt=Attempt(rollout_id="ro-1", attempt_id="at-1", sequence_id=1, start_time=0.0),
)
PROXY = ProxyLLM(endpoint="http://host:1/v1", model="m", sampling_parameters={"temperature": 1.0})


def test_a_function_gets_what_it_names() -> None:
    offered = {"task": 1, "resources": 2, "rollout": 3}
    assert arguments_for(lambda rollout, task: None, offered) == ([], {"rollout": 3, "task": 1})
    assert arguments_for(lambda task, extra=5: None, offered) == ([], {"task": 1})
    assert arguments_for(lambda **named: None, offered) == ([], offered)
    assert arguments_for(lambda sample, resources: None, offered) == ([], {"sample": 1, "resources": 2})
    with pytest.raises(TypeError, match="'judge'"):
        arguments_for(lambda task, resources, rollout, judge: None, offered)
    with pytest.raises(TypeError, match="'judge'"):
        arguments_for(lambda judge: None, offered, by_position=False)


class _Modes(LitAgent[Any]):
    def rollout(self, task: Any) -> float:
        return 1.0

    def training_rollout(self, task: Any, resources: Any, rollout: Any) -> float:
        return 2.0


class _Async(LitAgent[Any]):
    async def rollout_async(self, task: Any, resources: Any, rollout: Any) -> float:
        return 1.0


class _AsyncRollout(LitAgent[Any]):
    async def rollout(self, task: Any) -> float:
        return 1.0


class _TwoForms(LitAgent[Any]):
    def training_rollout(self, task: Any) -> float:
        return 1.0

    def validation_rollout(self, task: Any) -> float:
        return 2.0


class _Chooses(LitAgent[Any]):
    def is_async(self) -> bool:
        return False

    def rollout(self, task: Any) -> float:
        return 1.0

    async def rollout_async(self, task: Any) -> float:
        return 2.0


def test_the_mode_chooses_the_method() -> None:
    agent = _Modes()
    assert agent.method_for("train") == agent.training_rollout
    assert agent.method_for("val") == agent.rollout
    assert agent.method_for("test") == agent.rollout
    assert agent.method_for(None) == agent.rollout
    assert agent.needs_resources("train")
    assert not agent.needs_resources("val")
    assert _TwoForms().method_for(None)("x") == 2.0, "a rollout without a mode is no training"
    assert _Chooses().method_for("train")("x") == 1.0, "the class says that it is not async"
    assert asyncio.run(_Async().training_rollout_async(1, {}, ATTEMPTED)) == 1.0
    assert asyncio.run(_Async().validation_rollout_async(1, {}, ATTEMPTED)) == 1.0
    assert [kind().is_async() for kind in (_Modes, _Async, _AsyncRollout)] == [False, True, True]
    with pytest.raises(NotImplementedError, match="rollout_async"):
        LitAgent[Any]().method_for("train")


def test_trainer_tracer_and_runner_are_refused_outside_a_run() -> None:
    agent = _Modes()
    for name in ("trainer", "tracer", "runner"):
        with pytest.raises(ValueError, match=name):
            getattr(agent, name)
    agent.set_trainer("the trainer")
    assert agent.trainer == agent.get_trainer() == "the trainer"


def test_llm_rollout_gets_the_rollouts_own_url() -> None:
    @llm_rollout
    def agent(task: str, llm: LLM) -> list[Any]:
        return [task, llm]

    _, llm = agent.rollout("hi", {"main": PROXY}, ATTEMPTED)
    assert type(llm) is LLM
    assert llm.endpoint == "http://host:1/rollout/ro-1/attempt/at-1/v1"
    assert llm.sampling_parameters == {"temperature": 1.0}
    assert llm_rollout(lambda task, llm: llm, strip_proxy=False).rollout("hi", {"main": PROXY}, ATTEMPTED) == PROXY
    with pytest.raises(ValueError, match=r"no LLM .*prompt: PromptTemplate"):
        agent.rollout("x", {"prompt": PromptTemplate(template="t")}, ATTEMPTED)


async def test_prompt_rollout_may_be_async() -> None:
    @prompt_rollout
    async def agent(task: str, prompt_template: PromptTemplate) -> str:
        return prompt_template.format(task=task)

    assert agent.is_async()
    resources = {"llm": PROXY, "prompt": PromptTemplate(template="Do {task}")}
    assert await agent.rollout_async("it", resources, ATTEMPTED) == "Do it"


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ('Reply as {"answer": 42} to {task}', "asks for a value '\"answer\"'; the values given are: task"),
        ("{} {task}", "asks for a value '0'"),
        ("{task.b}", "value 'task.b' cannot be read"),
        ("{task", "braces do not match"),
    ],
)
def test_a_template_whose_braces_are_text_says_to_double_them(template: str, problem: str) -> None:
    for kind in (KeyError, ValueError):
        with pytest.raises(kind) as raised:
            PromptTemplate(template=template, engine="f-string").format(task="x")
        assert problem in str(raised.value)
        assert "as in a JSON example, double them in the template: {{ and }}" in str(raised.value)
    assert PromptTemplate(template='{{"answer": 42}} {task}').format(task="x") == '{"answer": 42} x'


def test_rollout_dispatches_on_the_names() -> None:
    @rollout
    def agent(task: str, prompt_template: PromptTemplate, llm: LLM, resources: Any, rollout: Any) -> list[Any]:
        return [prompt_template.template, llm.model, sorted(resources), rollout.rollout_id]

    resources = {"prompt": PromptTemplate(template="t"), "llm": PROXY}
    assert agent.rollout("x", resources, ATTEMPTED) == ["t", "m", ["llm", "prompt"], "ro-1"]
    assert agent.needs_resources("train")
    # a resource named as the parameter is preferred
    judge = LLM(endpoint="http://judge/v1", model="judge")
    assert agent.rollout("x", {"judge": judge} | resources, ATTEMPTED)[1] == "m"
    assert agent.rollout("x", {"judge": judge, "prompt": resources["prompt"]}, ATTEMPTED)[1] == "judge"


def test_the_decorated_function_is_still_a_function() -> None:
    @rollout
    def double(task: int) -> int:
        """Twice the task."""
        return 2 * task

    assert double(4) == 8
    assert double.__name__ == "double"
    assert double.__doc__ == "Twice the task."
    assert not double.needs_resources("train")


def test_wrong_signatures_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="named task"):
        rollout(lambda sample, llm: None)
    with pytest.raises(ValueError, match="needs a parameter named llm"):
        llm_rollout(lambda task: None)
    with pytest.raises(ValueError, match="needs a parameter named prompt_template"):
        prompt_rollout()(lambda task, llm: None)
    with pytest.raises(ValueError, match="'judge'"):
        rollout(lambda task, judge: None)


async def test_the_model_of_the_decorator_stands_in_where_the_resources_hold_none() -> None:
    @rollout(model=LLM(name="openai/gpt-4o-mini"), tokenizer=LLM(name="openai/gpt-4o-mini", tokenizer_only=True))
    async def agent(task: str, llm: LLM, tokenizer: LLM) -> str:
        return f"{llm.model} at {llm.endpoint}, {tokenizer.model}"

    trained = {"llm": LLM(endpoint="http://here/v1", model="policy")}
    assert not agent.needs_resources("train")
    assert await agent.rollout_async("1+1", {}, None) == "gpt-4o-mini at https://api.openai.com/v1, gpt-4o-mini"
    assert await agent.rollout_async("1+1", trained, None) == "policy at http://here/v1, gpt-4o-mini"


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

    @rollout
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

    first, last = Looks(), Looks()  # what was there before is not emitted again
    _, spans = await _run(Sets(), first, Replaces(), last)
    assert [get_reward_value(span) for span in spans if get_reward_value(span) is not None] == [0.25, 0.75]
    assert (first.seen, last.seen) == (0.25, 0.75)

    class Wrong(LitAgent):
        def rollout(self, task, rollout):
            rollout.metadata["reward"] = "good"

    with pytest.raises(TypeError, match="must be a number"):
        await _run(Wrong())


@pytest.mark.parametrize("value", [np.bool_(True), np.float32(1), np.array(1.0), torch.tensor(1.0)])
async def test_a_reward_may_be_a_numpy_scalar_or_a_tensor_without_axes(value) -> None:
    class Returns(LitAgent):
        def rollout(self, task):
            return value

    class Emits(LitAgent):
        def rollout(self, task):
            emit_reward(value)

    class Judges(Hook):
        async def on_rollout_end(self, *, rollout):
            return value

    class Gives(LitAgent):
        def rollout(self, task):
            return None

    for agent, *hooks in ((Returns(),), (Emits(),), (Gives(), Judges())):
        _, spans = await _run(agent, *hooks)
        assert find_final_reward(spans) == 1.0


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

    @rollout(trained_agents="planner")
    def function(task): ...

    assert OfClass().trained_agents == "solver"
    assert OfClass(trained_agents="other").trained_agents == "other"
    assert WithoutSuper().trained_agents is None
    assert function.trained_agents == "planner"


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
