"""Tasks that every rollout failed are tried again, begun with the first calls of an expert."""

from __future__ import annotations

import json

import pytest
from letters import TASKS, Asking, algorithm, fit

from mini_agentic_rl import Hook
from mini_agentic_rl.algorithm import WarmStart, WarmStartSettings
from mini_agentic_rl.algorithm.grpo import GRPOObjective
from mini_agentic_rl.metrics import read_metrics

FIRST = "first things first"


class TwoCalls(Asking):
    """Asks twice, and keeps what it heard."""

    async def rollout_async(self, task, resources, rollout):
        messages = [{"role": "user", "content": task["word"]}]
        for _ in range(2):
            messages.append({"role": "assistant", "content": await self.ask(rollout, resources["llm"], messages)})
            messages.append({"role": "user", "content": "and then?"})
        rollout.metadata["heard"] = messages[1]["content"]


class OnlyAfterTheExpert(Hook):
    """A rollout is right, by its seed, only where it began as the expert did."""

    async def on_rollout_end(self, *, rollout):
        return float(rollout.metadata["heard"] == FIRST and int(rollout.metadata["sampling_seed"]) % 2 == 0)


def demonstration(task):
    return [
        {"role": "user", "content": task["word"]},
        {"role": "assistant", "content": FIRST},
        {"role": "user", "content": "and then?"},
        {"role": "assistant", "content": "the rest"},
    ]


class FailsAfterTheExpert(TwoCalls):
    """Fails at the end of a rollout that began as the expert did."""

    async def rollout_async(self, task, resources, rollout):
        await super().rollout_async(task, resources, rollout)
        if rollout.metadata["heard"] == FIRST:
            raise ConnectionError("the connection is lost")


def run(folder, monkeypatch, *, tasks=TASKS[:2], steps=1, agent=TwoCalls, **settings):
    """Train with an expert; return the groups of each update."""
    seen, update = [], GRPOObjective.update

    def watched(self, adapter, groups):
        seen.append(list(groups))
        return update(self, adapter, groups)

    start = WarmStart(demonstration, (), WarmStartSettings(examples=0))
    with monkeypatch.context() as patch:
        patch.setattr(GRPOObjective, "update", watched)
        sizes = {"total_steps": steps, "tasks_per_step": 2, "samples_per_prompt": 6, "max_new_tokens": 24}
        trained = algorithm(warm_start=start, expert_prefix=True, **sizes, **settings)
        fit(trained, agent(), tasks, [OnlyAfterTheExpert()], n_runners=6, output_dir=folder)
    return seen


def test_rollouts_begin_as_the_demonstration_and_train_only_what_they_sampled(tmp_path, monkeypatch):
    seen = run(tmp_path, monkeypatch, steps=2)
    for groups in seen:
        plain, prefixed = groups[:2], groups[2:]
        assert [group.is_prefixed for group in groups] == [False, False, True, True]
        assert all(group.rewards.max() == 0 for group in plain)
        for trajectory in (one for group in prefixed for one in group.trajectories):
            given, sampled = trajectory.records
            assert given.forced.all()
            assert given.trained_tokens == 0
            assert sampled.trained_tokens == sampled.output_ids.size > 0
            assert sampled.prompt_ids[: given.prompt_ids.size].tolist() == given.prompt_ids.tolist()
            after = given.prompt_ids.size + given.output_ids.size
            assert sampled.prompt_ids[given.prompt_ids.size : after].tolist() == given.output_ids.tolist()
        assert any(0 < group.rewards.mean() < 1 for group in prefixed)
    rows = [row for row in read_metrics(tmp_path / "metrics.jsonl") if "prefix/groups" in row]
    assert [row["prefix/groups"] for row in rows] == [2, 2]
    assert [row["groups/count"] for row in rows] == [2, 2]
    assert [row["reward/mean"] for row in rows] == [0, 0]
    assert all(row["prefix/reward"] > 0 for row in rows)
    assert _prefix_calls(tmp_path) == {"0": 1, "1": 1}


def _prefix_calls(folder):
    return json.loads(max((folder / "checkpoints").glob("step_*/state.json")).read_text())["prefix_calls"]


def test_tasks_of_a_kind_share_the_number_of_given_calls(tmp_path, monkeypatch):
    run(tmp_path, monkeypatch, tasks=[task | {"kind": "greeting"} for task in TASKS[:2]])
    assert _prefix_calls(tmp_path) == {"greeting": 1}


@pytest.mark.parametrize(("on_failure", "size"), [("drop", 0), ("zero", 6)])
def test_a_rollout_that_fails_after_the_expert_counts_as_any_other_that_fails(
    tmp_path, monkeypatch, caplog, on_failure, size
):
    ((*_, prefixed),) = run(tmp_path, monkeypatch, tasks=TASKS[:1], agent=FailsAfterTheExpert, on_failure=on_failure)
    assert prefixed.is_prefixed
    assert prefixed.rewards.tolist() == [0.0] * size
    assert ("6 of 6 rollouts not trained" in caplog.text) == (on_failure == "drop")


def test_it_needs_steps_that_are_sampled_as_a_whole():
    with pytest.raises(ValueError, match="max_staleness=0"):
        algorithm(expert_prefix=True, max_staleness=1)
