"""The loop on a tiny model, with agents of three turns: what is trained, with which reward, and what failures do."""

from __future__ import annotations

from typing import Any

import pytest
from letters import TASKS, Asking, fit

from mini_agentic_rl import LLM, Hook, LitAgent, MiniGRPO
from mini_agentic_rl.adapter import TracerTraceToTriplet
from mini_agentic_rl.algorithm.settings import GRPOSettings
from mini_agentic_rl.emitter import emit_reward, operation
from mini_agentic_rl.errors import RunFailedError
from mini_agentic_rl.policy import LoraSettings
from tiny import tiny_model, tiny_tokenizer

GROUP = 4


class Talk(Asking):
    """A conversation of three turns; each earns its share of letters a at once."""

    async def rollout_async(self, task, resources, rollout):
        messages = [{"role": "user", "content": task["word"]}]
        for _ in range(3):
            text = await self.ask(rollout, resources["main_llm"], messages)
            emit_reward({"letters": len(set(text)) / 6, "length": float(len(text))}, primary_key="letters")
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "more"}]
        rollout.metadata["said"] = [message["content"] for message in messages]


def _run(agent: LitAgent, hooks=(), *, steps: int = 1, trainer: dict[str, Any] | None = None, **settings: Any):
    options = {"total_steps": steps, "tasks_per_step": 1, "samples_per_prompt": GROUP, "max_new_tokens": 6}
    tokenizer = tiny_tokenizer()
    trained = MiniGRPO(tiny_model(len(tokenizer)), tokenizer, **{"lora": None, **options, **settings})
    kept = fit(trained, agent, TASKS[:1], hooks, **(trainer or {}))
    return trained, [row for row in kept.rows if "groups/count" in row]


def test_three_turns_with_rewards_of_their_own_are_trained():
    trained, rows = _run(Talk(), steps=2, credit="discounted")
    assert trained.summary["untrained"] == {}
    for row in rows:
        assert row["rollout/calls"] == 3
        assert row["groups/with_signal"] == 1
        assert row["grad_norm"] > 0
        assert row["mismatch/mean_abs"] < 1e-4
        assert {"reward/letters/mean", "reward/length/mean"} <= set(row)


class Pair(Talk):
    """A solver with three calls and a critic with two, each inside an operation that names it."""

    async def rollout_async(self, task, resources, rollout):
        for turn in range(3):
            with operation(name="solve", **{"gen_ai.agent.name": "solver"}):
                await self.ask(rollout, resources["llm"], f"{task['word']} {turn}")
            if turn:
                with operation(name="criticise", **{"gen_ai.agent.name": "critic"}):
                    await self.ask(rollout, resources["llm"], f"how is {turn}")
        return float(rollout.metadata["sampling_seed"] % 2)


class Marking(Pair):
    async def rollout_async(self, task, resources, rollout):
        rollout.mark_agent_as_trainable("critic")
        return await super().rollout_async(task, resources, rollout)


@pytest.mark.parametrize(
    ("agent", "options", "calls"),
    [
        (Pair(trained_agents="solv"), {}, 3),
        (Marking(), {"adapter": TracerTraceToTriplet(agent_match="crit")}, 2),
    ],
)
def test_only_the_calls_of_chosen_agents_are_trained(agent, options, calls):
    trained, (row,) = _run(agent, trainer=options)
    assert trained.summary["untrained"] == {}
    assert row["rollout/calls"] == calls
    assert row["rollout/calls_left_out"] == GROUP * (5 - calls)


def test_a_rollout_whose_calls_are_all_left_out_says_why():
    with pytest.raises(RunFailedError, match=f"all {GROUP} rollouts of the training failed") as raised:
        _run(Marking(trained_agents="solver"))
    reason = str(raised.value)
    assert "of agent 'critic', which trained_agents='solver' does not match" in reason
    assert "of agent 'solver', which is not marked as trainable (marked: critic)" in reason


class WithFixed(Talk):
    """Two turns of the model that is trained; between them one of its base model, which is not."""

    async def rollout_async(self, task, resources, rollout):
        assert resources["judge"].model == "fixed"
        assert resources["llm"] == resources["main_llm"]
        llm = resources["main_llm"]
        for turn, model in enumerate([llm.model, f"{llm.model}-base", llm.model]):
            await self.ask(rollout, llm, f"{task['word']} {turn}", model)
        return float(rollout.metadata["sampling_seed"] % 2)


def test_of_several_models_only_the_trainable_one_is_trained():
    resources = {
        "judge": LLM(endpoint="http://127.0.0.1:9/v1", model="fixed"),
        "main_llm": LLM(endpoint="http://127.0.0.1:9/v1", model="a placeholder"),
    }
    trained, (row,) = _run(WithFixed(), trainer={"initial_resources": resources}, lora=LoraSettings())
    assert trained.summary["untrained"] == {}
    assert (row["rollout/calls"], row["rollout/calls_left_out"]) == (2, GROUP)


class Breaks(Talk):
    """Fails after its calls: on every second rollout, or on the first attempt at every one."""

    def __init__(self, when: str) -> None:
        super().__init__()
        self.when = when
        self.seen = 0
        self.said: dict[str, list[list[str]]] = {}

    async def rollout_async(self, task, resources, rollout):
        await super().rollout_async(task, resources, rollout)
        self.said.setdefault(rollout.rollout_id, []).append(rollout.metadata["said"])
        self.seen += 1
        broken = self.seen % 2 if self.when == "odd" else rollout.attempt.sequence_id == 1
        if broken:
            raise RuntimeError("no way")


class Scores(Hook):
    async def on_rollout_end(self, *, spans):
        return None if any(span.name == "agentlightning.exception" for span in spans) else 1.0


def test_failed_rollouts_are_left_out_of_their_group_by_default():
    trained, (row,) = _run(Breaks("odd"), [Scores()])
    assert (row["rollout/failed"], row["rollout/dropped"], row["rollout/zeroed"]) == (2, 2, 0)
    assert (row["groups/with_signal"], row["reward/mean"]) == (0, 1.0)
    (reason,) = trained.summary["untrained"]
    assert "no way" in reason


def test_failed_rollouts_may_count_as_zero():
    trained, (row,) = _run(Breaks("odd"), [Scores()], trainer={"on_failure": "zero"}, credit="last_call")
    assert (row["rollout/failed"], row["rollout/dropped"], row["rollout/zeroed"]) == (2, 0, 2)
    assert (row["groups/with_signal"], row["reward/mean"]) == (1, 0.5)
    assert trained.summary["untrained"] == {}
    assert "loss" in row


def test_failed_rollouts_may_be_tried_again_with_other_samples():
    agent = Breaks("first")
    trained, (row,) = _run(agent, [Scores()], on_failure="retry", max_attempts=2)
    assert (row["rollout/failed"], row["rollout/retried"], row["rollout/dropped"]) == (0, GROUP, 0)
    assert row["rollout/calls"] == 3
    assert trained.summary["untrained"] == {}
    assert len(agent.said) == GROUP
    assert all(first != second for first, second in agent.said.values())


class Silent(LitAgent):
    async def rollout_async(self, task):
        raise RuntimeError("before any call")


def test_a_failure_before_any_call_is_no_zero():
    with pytest.raises(RunFailedError, match=r"all 6 rollouts of the training failed: .*before any call"):
        _run(Silent(), on_failure="zero", samples_per_prompt=2, trainer={"num_epochs": 3})


def test_epochs_are_steps_over_all_tasks():
    settings = GRPOSettings(total_epochs=2, tasks_per_step=3)
    assert [settings.steps(tasks) for tasks in (1, 3, 7)] == [2, 2, 6]
    assert GRPOSettings(total_steps=4).steps(7) == 4
