"""All that a loop does, with sampling ahead of learning: other algorithms, validation, interruption."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest
import two_agents
from letters import TASKS, AnyReward, Letters, algorithm
from test_staleness import GROUP, PER_STEP, SMALL, Watching

from mini_agentic_rl import Hook, InMemoryLightningStore, Trainer
from mini_agentic_rl.trainer import RunFolder


class SomeRight(Hook):
    """Some rollouts of each task are right, whatever the model says."""

    async def on_rollout_end(self, *, rollout):
        return float(int(rollout.metadata["sampling_seed"]) % 2 == 0)


def test_each_of_two_adapters_has_ages_of_its_own():
    watching = Watching()
    trained = two_agents.algorithm(total_steps=4, tasks_per_step=2, samples_per_prompt=4, max_staleness=1)
    Trainer(algorithm=trained, n_runners=16, logger=watching).fit(two_agents.Two(), two_agents.TASKS)
    assert len(watching.steps) == 4
    assert max(row["staleness/max"] for row in watching.steps) <= 1
    for name in two_agents.NAMES:
        assert any(f"{name}/loss" in row for row in watching.steps)
        assert max(row.get(f"{name}/mismatch/mean_abs", 0.0) for row in watching.steps) < 1e-4


class Interrupting(Watching):
    def __init__(self, after):
        super().__init__()
        self._after = after

    def log(self, metrics, *, step):
        super().log(metrics, step=step)
        if step == self._after and "staleness/mean" in metrics:
            raise KeyboardInterrupt


def test_an_interrupted_run_goes_on_with_the_tasks_that_it_had_drawn(tmp_path):
    def fit(logger, *, resume=False):
        trained = algorithm(
            total_steps=5,
            max_staleness=1,
            curriculum="pass_rate",
            eval_every=2,
            checkpoint_every=100,
            validation=TASKS[:2],
            validation_size=2,
            validation_every=2,
            **SMALL,
        )
        store = InMemoryLightningStore()
        Trainer(
            algorithm=trained,
            hooks=[SomeRight()],
            store=store,
            n_runners=6,
            output_dir=tmp_path / "run",
            logger=logger,
            resume=resume,
        ).fit(Letters(), TASKS, val_dataset=TASKS)
        return trained, store

    first = Interrupting(3)
    with pytest.raises(KeyboardInterrupt):
        fit(first)
    step, folder = RunFolder(tmp_path / "run").latest_checkpoint()
    state = json.loads((folder / "state.json").read_text())
    assert step == state["step"] == 3
    assert len(state["pending"]) == 2 * PER_STEP, "those that were complete first have been learnt"
    too_old = sum(row["staleness/too_old"] for row in first.steps)
    assert state["drawn"] == 5 * PER_STEP + too_old, "one more for each group that has become too old"
    watching = Watching()
    trained, store = fit(watching, resume=True)
    assert [row["groups/count"] for row in watching.steps] == [PER_STEP] * 2
    assert trained.summary["steps"] == 5
    assert {row["name"] for row in trained.summary["accuracy"]} == {"before", "step 2", "step 4", "after RL"}
    assert [one["step"] for one in trained.summary["validation"]] == [0, 2, 4, 5]
    rollouts = asyncio.run(store.query_rollouts())
    again = [
        one.metadata for one in rollouts if one.mode == "train" and str(one.metadata["number"]) in state["pending"]
    ]
    assert {str(one["number"]): one["row"] for one in again} == state["pending"]
    assert {one.status for one in rollouts} <= {"succeeded", "cancelled", "failed"}
    finished = [one for one in rollouts if one.mode == "train" and one.status == "succeeded"]
    counts = Counter(one.metadata["number"] for one in finished)
    assert len(counts) >= 2 * PER_STEP
    assert max(counts.values()) == GROUP, "nothing is sampled twice"


def test_a_run_that_ends_early_cancels_what_was_sampled_ahead(tmp_path):
    store, watching = InMemoryLightningStore(), Watching()
    trained = algorithm(total_steps=50, max_staleness=2, patience=1, validation=TASKS[:2], validation_every=1, **SMALL)
    trainer = Trainer(
        algorithm=trained, hooks=[AnyReward()], store=store, n_runners=2, output_dir=tmp_path, logger=watching
    )
    trainer.fit(Letters(), TASKS)
    assert len(watching.steps) < 50
    assert any("stopped after step" in note for note in watching.notes)
    assert {one.status for one in asyncio.run(store.query_rollouts())} <= {"succeeded", "cancelled", "failed"}
    assert not trained.progress.pending
