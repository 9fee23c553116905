"""Groups with rare right rollouts are trained on again, weighed by importance, and a resumed run knows them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from letters import TASKS, Letters, algorithm

from mini_agentic_rl import Hook, MiniPPO, Trainer
from mini_agentic_rl.algorithm.grpo.objective import GRPOObjective
from mini_agentic_rl.algorithm.loop.extra_groups import chosen, remember
from mini_agentic_rl.algorithm.loop.state import RunProgress
from mini_agentic_rl.metrics import MetricsLogger, read_metrics


class SomeRight(Hook):
    """Some rollouts of each task are right, whatever the model says."""

    async def on_rollout_end(self, *, rollout):
        return float(int(rollout.metadata["sampling_seed"]) % 2 == 0)


class Breaks(MetricsLogger):
    def log(self, metrics, *, step):
        if step == 2:
            raise KeyboardInterrupt


def _fit(folder, seen, monkeypatch, *, steps=3, logger=None, resume=False):
    update = GRPOObjective.update

    def watched(self, adapter, groups):
        seen.append(list(groups))
        return update(self, adapter, groups)

    with monkeypatch.context() as patch:
        patch.setattr(GRPOObjective, "update", watched)
        trainer = Trainer(
            algorithm=algorithm(
                total_steps=steps,
                tasks_per_step=2,
                samples_per_prompt=6,
                eval_size=1,
                checkpoint_every=1,
                replay_groups=1,
                replay_steps=2,
            ),
            hooks=[SomeRight()],
            n_runners=4,
            output_dir=folder,
            logger=logger or MetricsLogger(),
            resume=resume,
        )
        trainer.fit(Letters(), TASKS, val_dataset=TASKS)


def test_right_rollouts_are_replayed_as_they_were_sampled_and_after_an_interruption_too(tmp_path, monkeypatch):
    seen = []
    with pytest.raises(KeyboardInterrupt):
        _fit(tmp_path, seen, monkeypatch, logger=Breaks())
    state = json.loads((tmp_path / "checkpoints" / "step_2" / "state.json").read_text())
    _fit(tmp_path, seen, monkeypatch, resume=True)
    assert len(seen) == 3
    (first, second, third) = seen
    assert len(first) == 2
    for groups, earlier in ((second, first), (third, [*first, *second[:2]])):
        assert len(groups) == 3
        again = groups[2]
        sampled = {trajectory.rollout_id: trajectory for one in earlier for trajectory in one.trajectories}
        assert again.task_id.startswith("replayed/")
        for trajectory in again.trajectories:
            before = sampled[trajectory.rollout_id]
            assert trajectory.reward == before.reward
            for old, new in zip(before.records, trajectory.records, strict=True):
                np.testing.assert_array_equal(old.output_ids, new.output_ids)
                np.testing.assert_array_equal(old.logprobs, new.logprobs, "the ratio is to the policy that sampled")
            assert (trajectory.trained_tokens > 0) == (trajectory.reward == 1)
        np.testing.assert_array_equal(again.credits, again.rewards, "the wrong ones are compared with")
    assert {entry["step"] for entry in state["replay"]} <= {1, 2}
    assert sum(entry["uses"] for entry in state["replay"]) <= 1
    rows = {row["step"]: row for row in read_metrics(tmp_path / "metrics.jsonl") if "groups/count" in row}
    assert [rows[step]["groups/count"] for step in (1, 3)] == [2, 2], "what is replayed is not sampled"
    assert "groups/replayed" not in rows[1]
    assert rows[3]["groups/replayed"] == 1
    assert max(rows[step]["mismatch/mean_abs"] for step in (1, 3)) < 1e-4, "what older weights sampled is no mismatch"
    assert rows[3]["staleness/kl"] > 0


def _entry(step, right, uses=0, adapter="default"):
    return {"step": step, "adapter": adapter, "rollouts": [], "right": right, "uses": uses}


def test_the_fewest_right_come_first_and_none_again_before_the_others():
    buffer = [_entry(1, 0.5), _entry(1, 0.1, uses=1), _entry(2, 0.2), _entry(2, 0.1, adapter="other")]
    assert [entry["right"] for entry in chosen(buffer, "default", 2)] == [0.2, 0.5]
    assert chosen(buffer, "default", 0) == []
    progress = RunProgress(step=3, replay=buffer)
    remember(progress, {"default": []}, algorithm(replay_groups=1, replay_steps=2).settings)
    assert [(entry["right"], entry["uses"]) for entry in progress.replay] == [(0.2, 1), (0.1, 0)]


def test_ppo_refuses_what_it_cannot_weigh():
    with pytest.raises(ValueError, match="replay_groups` is GRPO's"):
        MiniPPO("embedded", replay_groups=1)
