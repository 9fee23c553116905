"""Sampling ahead of learning: by how much, from which weights, with which corrections, and after a crash."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections import Counter

import numpy as np
import pytest
import two_agents
from letters import TASKS, AnyReward, Kept, Letters, algorithm, fit

from helpers import pack_rollouts, sample_all, tiny_policy
from mini_agentic_rl import Hook, InMemoryLightningStore, MiniGRPO
from mini_agentic_rl.algorithm.groups import Group, Trajectory
from mini_agentic_rl.algorithm.grpo import GRPOObjective, batch_of, take_steps
from mini_agentic_rl.algorithm.rollouts import FinishedRollout
from mini_agentic_rl.algorithm.settings import GRPOSettings
from mini_agentic_rl.algorithm.staleness import from_lost_weights, token_ages, with_update
from mini_agentic_rl.policy import LearnerSettings, LossOutputs
from mini_agentic_rl.store import SqlLightningStore
from mini_agentic_rl.tokens import CompletionRecord, SamplingParams
from mini_agentic_rl.trainer import RunFolder
from mini_agentic_rl.types import Rollout

PER_STEP, GROUP = 2, 3
SMALL = {"tasks_per_step": PER_STEP, "samples_per_prompt": GROUP, "max_new_tokens": 4, "eval_size": 1, "seed": 5}


class Watching(Kept):
    """Keeps what a run logs, and calls a function after each of its steps."""

    def __init__(self, after_step=lambda step: None) -> None:
        super().__init__()
        self._after_step = after_step

    def log(self, metrics, *, step):
        super().log(metrics, step=step)
        if "staleness/mean" in metrics:
            self._after_step(step)


def raising(error, after):
    """Return a function that raises an error after a step."""

    def after_step(step):
        if step == after:
            raise error

    return after_step


@pytest.fixture
def updates(monkeypatch):
    """The rollouts that each update learns from, as their ids."""
    seen: list[list[str]] = []
    update = GRPOObjective.update

    def watched(self, adapter, groups):
        seen.append([trajectory.rollout_id for group in groups for trajectory in group.trajectories])
        return update(self, adapter, groups)

    monkeypatch.setattr(GRPOObjective, "update", watched)
    return seen


def test_no_rollout_is_learnt_twice_or_by_weights_too_new_for_it_and_none_is_sampled_too_far_ahead(updates):
    staleness = 2
    watching, enqueued, ahead = Watching(), [], []

    class Counting(InMemoryLightningStore):
        async def enqueue_many_rollouts(self, rollouts):
            enqueued.extend(rollout for rollout in rollouts if rollout.mode == "train")
            ahead.append(len(enqueued) - sum(map(len, updates)))
            return await super().enqueue_many_rollouts(rollouts)

    store, trained = Counting(), algorithm(total_steps=6, max_staleness=staleness, **SMALL)
    fit(trained, Letters(), TASKS, [AnyReward()], store=store, logger=watching)
    learnt = [rollout_id for ids in updates for rollout_id in ids]
    assert len(watching.steps) == len(updates) == trained.summary["steps"] == 6
    assert len(learnt) == len(set(learnt)) == 6 * PER_STEP * GROUP
    assert len(enqueued) == len(learnt), "nothing is sampled that no step is left for"
    assert max(ahead) == (staleness + 1) * PER_STEP * GROUP
    assert 1 <= max(row["staleness/max"] for row in watching.steps) <= staleness
    assert watching.steps[0]["staleness/max"] == 0
    assert all(row["staleness/mean"] <= row["staleness/max"] for row in watching.steps)
    assert max(row.get("mismatch/mean_abs", 0.0) for row in watching.steps) < 1e-4, "older weights are no mismatch"
    assert max(row["staleness/kl"] for row in watching.steps) > 1e-4
    assert trained.settings.importance_correction == "token"
    assert all("importance/mean" in row for row in watching.steps)
    assert not trained.progress.pending


class Slow(Letters):
    """Lets the rollouts of one task wait until three steps are done."""

    def __init__(self, go_on: threading.Event) -> None:
        super().__init__()
        self._go_on = go_on

    async def rollout_async(self, task, resources, rollout):
        await super().rollout_async(task, resources, rollout)
        if rollout.metadata["number"] == 1:
            await asyncio.to_thread(self._go_on.wait, 60)


def test_what_became_too_old_is_dropped_and_said(caplog, updates):
    store, go_on = InMemoryLightningStore(), threading.Event()
    watching = Watching(lambda step: go_on.set() if step == 3 else None)
    trained = algorithm(total_steps=8, max_staleness=1, **SMALL)
    fit(trained, Slow(go_on), TASKS, [AnyReward()], store=store, n_runners=12, logger=watching)
    assert sum(row["staleness/too_old"] for row in watching.steps) == 1
    (reason,) = trained.summary["untrained"]
    assert trained.summary["untrained"] == {reason: GROUP}
    assert "max_staleness=1" in reason
    assert reason in caplog.text
    rollouts = asyncio.run(store.query_rollouts())
    dropped = [rollout for rollout in rollouts if (rollout.metadata or {}).get("untrained") == reason]
    assert {rollout.metadata["number"] for rollout in dropped} == {1}
    assert not {rollout.rollout_id for rollout in dropped} & {one for ids in updates for one in ids}
    assert len(watching.steps) == 8


def test_after_a_crash_what_was_sampled_is_found_in_the_store_and_learnt_once(tmp_path, updates):
    def run(logger, *, resume=False):
        trained = algorithm(total_steps=7, max_staleness=2, checkpoint_every=2, **SMALL)
        store = SqlLightningStore(f"sqlite:///{tmp_path}/rollouts.db")
        options = {"store": store, "output_dir": tmp_path / "run", "resume": resume}
        fit(trained, Letters(), TASKS, [AnyReward()], logger=logger, **options)
        return trained

    with pytest.raises(OSError, match="crashed"):
        run(Watching(raising(OSError("crashed"), 3)))  # the last checkpoint is that of step 2
    before, updates[:] = list(updates), []
    store = SqlLightningStore(f"sqlite:///{tmp_path}/rollouts.db")
    left = {one.rollout_id for one in asyncio.run(store.query_rollouts(status_in=["succeeded"]))}
    watching = Watching()
    trained = run(watching, resume=True)
    learnt = [rollout_id for ids in [*before[:2], *updates] for rollout_id in ids]
    assert len(learnt) == len(set(learnt)) == 7 * PER_STEP * GROUP
    again = {one for ids in updates for one in ids} & left
    assert set(before[2]) <= again, "the lost step's rollouts are learnt after all"
    assert any(f"found in the store: {n} rollouts not learnt yet" in watching.notes for n in range(6, 30))
    assert max(row["staleness/max"] for row in watching.steps) <= 2
    assert trained.summary["steps"] == 7


def test_with_dynamic_sampling_a_batch_is_of_groups_with_a_signal(updates):
    watching = Watching()
    trained = algorithm(total_steps=3, max_staleness=1, dynamic_sampling=True, max_sampling_rounds=3, **SMALL)

    class HalfAlike(AnyReward):
        async def on_rollout_end(self, *, rollout):
            return 0.0 if rollout.metadata["number"] % 2 else await super().on_rollout_end(rollout=rollout)

    fit(trained, Letters(), TASKS, [HalfAlike()], logger=watching)
    assert [row["groups/with_signal"] for row in watching.steps] == [PER_STEP] * 3
    assert all(row["groups/count"] <= 3 * PER_STEP for row in watching.steps)


def _sampled(versions, begun=None):
    size = len(versions)
    record = CompletionRecord(
        np.array([1]), np.arange(size), np.zeros(size, np.float32), model="m", versions=np.array(versions)
    )
    rollout = Rollout(rollout_id="r", input={}, start_time=0.0, metadata={} if begun is None else {"version": begun})
    return FinishedRollout(rollout, [], [record], 1.0, None)


def test_an_age_counts_the_updates_since_and_not_optimizer_steps():
    updates = [{"a": 2}, {"a": 2}, {"a": 4}, {"a": 6}]
    ages = token_ages([_sampled([0, 2, 3, 4, 6])], updates, {"m": "a"})
    by_hand = [len({one["a"] for one in updates if one["a"] > version}) for version in (0, 2, 3, 4, 6)]
    assert ages.tolist() == by_hand == [3, 2, 2, 1, 0]
    assert token_ages([_sampled([0, 0], {"a": 4})], updates, {"m": "a"}).tolist() == [1, 1], "as old as its rollout"
    assert with_update(updates, {"a": 6}, 3) == updates, "a step that changed nothing"
    assert with_update(updates, {"a": 8}, 3) == [{"a": 4}, {"a": 6}, {"a": 8}]


def test_weights_that_a_crash_took_back_count_as_so_far_behind():
    turned = from_lost_weights(_sampled([4, 5, 7], {"a": 7}), {"a": 5}, {"m": "a"})
    assert turned.records[0].versions_T.tolist() == [4, 5, 3]
    assert turned.rollout.metadata["version"] == {"a": 3}


def test_the_default_correction_goes_with_the_loss():
    def correction(**settings):
        return MiniGRPO("embedded", **settings).settings.importance_correction

    assert correction() == "none"
    assert correction(max_staleness=2) == "token"
    assert correction(max_staleness=2, preset="icepop") == "icepop"
    assert correction(max_staleness=2, importance_correction="none") == "none"
    assert correction(max_staleness=2, preset="dppo") == correction(max_staleness=1, policy_loss="dppo_tv") == "none"
    with pytest.raises(ValueError, match="`max_staleness=0`"):
        MiniGRPO("embedded", max_staleness=1, deterministic=True)


class SomeRight(Hook):
    """Some rollouts of each task are right, whatever the model says."""

    async def on_rollout_end(self, *, rollout):
        return float(int(rollout.metadata["sampling_seed"]) % 2 == 0)


def test_each_of_two_adapters_has_ages_of_its_own():
    watching = Watching()
    trained = two_agents.algorithm(total_steps=4, tasks_per_step=2, samples_per_prompt=4, max_staleness=1)
    fit(trained, two_agents.Two(), two_agents.TASKS, n_runners=16, logger=watching)
    assert len(watching.steps) == 4
    assert max(row["staleness/max"] for row in watching.steps) <= 1
    for name in two_agents.NAMES:
        assert any(f"{name}/loss" in row for row in watching.steps)
        assert max(row.get(f"{name}/mismatch/mean_abs", 0.0) for row in watching.steps) < 1e-4


def test_an_interrupted_run_goes_on_with_the_tasks_that_it_had_drawn(tmp_path):
    measured = {"eval_every": 2, "validation": TASKS[:2], "validation_size": 2, "validation_every": 2}

    def run(logger, *, resume=False):
        own = {"max_staleness": 1, "curriculum": "pass_rate", "checkpoint_every": 100}
        trained, store = algorithm(total_steps=5, **own, **measured, **SMALL), InMemoryLightningStore()
        options = {"store": store, "output_dir": tmp_path / "run", "resume": resume, "val_dataset": TASKS}
        fit(trained, Letters(), TASKS, [SomeRight()], n_runners=6, logger=logger, **options)
        return trained, store

    first = Watching(raising(KeyboardInterrupt(), 3))
    with pytest.raises(KeyboardInterrupt):
        run(first)
    step, folder = RunFolder(tmp_path / "run").latest_checkpoint()
    state = json.loads((folder / "state.json").read_text())
    assert step == state["step"] == 3
    assert len(state["pending"]) == 2 * PER_STEP, "those that were complete first have been learnt"
    too_old = sum(row["staleness/too_old"] for row in first.steps)
    assert state["drawn"] == 5 * PER_STEP + too_old, "one more for each group that has become too old"
    watching = Watching()
    trained, store = run(watching, resume=True)
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
    fit(trained, Letters(), TASKS, [AnyReward()], store=store, n_runners=2, output_dir=tmp_path, logger=watching)
    assert len(watching.steps) < 50
    assert any("stopped after step" in note for note in watching.notes)
    assert {one.status for one in asyncio.run(store.query_rollouts())} <= {"succeeded", "cancelled", "failed"}
    assert not trained.progress.pending


LOW, HIGH = 0.8, 1.2
REWARDS = (1.0, 0.0, 0.5, 0.0)


@pytest.fixture(scope="module")
def stale():
    """Rollouts of two versions, the second of which is the present one, and what present weights say of each token."""
    with tiny_policy() as policy:
        learner = policy.run(lambda: policy.learner(LearnerSettings(learning_rate=0.02)))
        records = []
        for version in range(2):
            params = [SamplingParams(max_tokens=8, seed=10 * version + n) for n in range(2)]
            records += sample_all(policy, [list(range(30, 50))] * 2, params)
            if version == 0:
                first = pack_rollouts([records[:1]])

                def learn(first=first):
                    learner.forward_backward(first, lambda inputs: LossOutputs(inputs.logprobs_S.sum()))
                    learner.optim_step()

                policy.run(learn)
        current = [policy.run(lambda r=r: learner.logprobs(pack_rollouts([[r]]))).double().numpy() for r in records]
        yield policy, learner, records, current


def _learnt(stale, **settings):
    policy, learner, records, _ = stale
    chosen = GRPOSettings(max_staleness=1, loss_aggregation="token", **settings)
    trajectories = [Trajectory(str(n), [r], reward) for n, (r, reward) in enumerate(zip(records, REWARDS, strict=True))]
    batch = batch_of([Group("g", trajectories)], chosen)
    assert batch is not None
    optim_step = learner.optim_step
    learner.optim_step = dict  # the same weights for every correction
    try:
        return policy.run(lambda: take_steps(learner, batch, chosen))
    finally:
        learner.optim_step = optim_step
        policy.run(lambda: [setattr(parameter, "grad", None) for parameter in learner.parameters])


def _weights(name, ratios):
    """Each correction, written out for the tokens of one rollout."""
    found = []
    for ratio in ratios:
        if name == "token":
            found.append(min(ratio, HIGH))
        elif name == "sequence":
            found.append(min(math.prod(ratios), HIGH))
        else:
            found.append(ratio if LOW <= ratio <= HIGH else 0.0)
    return found


@pytest.mark.parametrize("name", ["token", "sequence", "icepop"])
def test_a_correction_weighs_each_token_by_what_its_own_version_recorded(stale, name):
    _, _, records, current = stale
    metrics = _learnt(stale, importance_correction=name, importance_cap=HIGH, importance_floor=LOW)
    expected = []
    for record, now in zip(records, current, strict=True):
        expected += _weights(name, [math.exp(a - b) for a, b in zip(now, record.logprobs, strict=True)])
    assert metrics["importance/mean"] == pytest.approx(np.mean(expected), abs=1e-4)
    assert metrics["importance/masked"] == pytest.approx(np.mean(np.array(expected) == 0), abs=1e-6)
    assert len({round(weight, 3) for weight in expected}) > 1, "the weights have moved"
    assert metrics["mismatch/mean_abs"] < 1e-4, "that of present weights alone"
    assert metrics["staleness/kl"] > 1e-4
