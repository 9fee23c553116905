"""When a warm-up has made a policy ready for rewards."""

from __future__ import annotations

import numpy as np
import pytest
from letters import TASKS, AnyReward, CountLetters, Kept, Letters, algorithm

from mini_agentic_rl import Trainer
from mini_agentic_rl.algorithm import WarmStart, WarmStartSettings, readiness
from mini_agentic_rl.algorithm.readiness import Readiness, readiness_of
from mini_agentic_rl.algorithm.rollouts import Evaluation, FinishedRollout
from mini_agentic_rl.policy import LoraSettings
from mini_agentic_rl.tokens import CompletionRecord
from mini_agentic_rl.types import Rollout


def finished(reward, outputs=(5,), logprobs=(-1.0,), task=None):
    record = CompletionRecord(np.array([1, 2], np.int64), np.array(outputs, np.int64), np.array(logprobs, np.float32))
    rollout = Rollout(rollout_id="ro", input=task or {}, start_time=0.0, status="succeeded")
    return FinishedRollout(rollout, (), (record,), reward, None)


def probed(*right, tries=8):
    rollouts = [finished(float(index < count)) for count in right for index in range(tries)]
    return readiness_of(Evaluation("probe", rollouts, tries))


def test_some_tries_right_and_most_tasks_solved_once_is_ready():
    found = probed(2, 3, 1, 4)
    assert (found.pass_1, found.pass_n, found.tasks) == (10 / 32, 1.0, 4)
    assert found.is_ready
    assert found.warning is None
    assert found.line.startswith("31 % of single tries, 100 % of 8")


@pytest.mark.parametrize(
    ("right", "says"),
    [
        ((0, 0, 0, 0), "no try of any task was right"),
        ((8, 0, 0, 0), "as sure of wrong answers"),
    ],
)
def test_a_policy_with_little_to_select_from_gets_the_reason(right, says):
    found = probed(*right)
    assert not found.is_ready
    assert says in found.warning


def test_a_kind_of_task_that_no_try_solves_is_not_ready():
    def probe(*right):
        rollouts = [
            finished(float(index < count), task={"kind": kind})
            for kind, count in zip(("sum", "product"), right, strict=True)
            for index in range(8)
        ]
        return readiness_of(Evaluation("probe", rollouts, 8))

    assert probe(3, 3).is_ready
    found = probe(0, 4)
    assert (found.pass_1, found.pass_n, list(found.never_right)) == (0.25, 0.5, ["sum"])
    assert not found.is_ready
    assert "of the kind sum was right" in found.warning


def test_entropy_is_that_of_the_tokens_where_tries_of_a_task_diverge():
    one, other = finished(1.0, (5, 6, 9), (-0.1, -0.7, -0.3)), finished(1.0, (5, 7, 9), (-0.1, -0.9, -0.2))

    def entropy(*rollouts, tries):
        return readiness_of(Evaluation("probe", rollouts, tries)).entropy

    assert entropy(one, other, tries=2) == pytest.approx(0.8)
    assert entropy(one, one, tries=2) == 0.0
    assert entropy(one, other, tries=1) == 0.0  # other tasks are no tries of this one
    assert "0.80 nats" in readiness_of(Evaluation("probe", [one, other], 2)).line


def _warmed_up(folder, monkeypatch, *, ready, **settings):
    """Warm up with 12 examples; return the algorithm."""
    found = Readiness(0.3, 0.9, 8, 4, 1.0) if ready else Readiness(0.4, 0.4, 8, 4, 0.0)
    monkeypatch.setattr(readiness, "readiness_of", lambda evaluation: found)
    monkeypatch.setattr(readiness, "_PROBE_TASKS", 1)
    start = WarmStart(
        lambda task: [{"role": "user", "content": task["word"]}, {"role": "assistant", "content": "a"}],
        (),
        WarmStartSettings(examples=12, batch_size=1, **settings),
    )
    trained = algorithm(total_steps=0, warm_start=start)
    trainer = Trainer(algorithm=trained, hooks=[CountLetters()], n_runners=8, output_dir=folder, logger=Kept())
    tasks = [{"word": f"{word}{number}"} for number in range(3) for word in ("hi", "go", "yo", "me")]
    trainer.fit(Letters(), tasks)
    return trained, trainer.logger.notes


def test_the_warm_up_ends_when_the_policy_is_ready(tmp_path, monkeypatch):
    trained, notes = _warmed_up(tmp_path, monkeypatch, ready=True)
    assert trained.progress.imitated == {"default": 6}
    assert trained.progress.readiness["default"]["ready"]
    assert any(note.startswith("ready for rewards: 30 % of single tries, 90 % of 8") for note in notes)


def test_the_warm_up_ends_where_most_tries_are_right_already():
    found = probed(8, 8, 5, 4)
    assert found.ends_warm_up
    assert not found.is_ready
    assert found.warning is None
    assert not probed(0, 0, 1, 0).ends_warm_up


def test_the_warm_up_takes_all_examples_where_it_is_not_ready_or_not_asked(tmp_path, monkeypatch, caplog):
    trained, notes = _warmed_up(tmp_path / "unready", monkeypatch, ready=False)
    assert trained.progress.imitated == {"default": 12}
    assert any(note.startswith("step 12 of the warm-up: 40 % of single tries, 40 % of 8") for note in notes)
    assert "as sure of wrong answers" in caplog.text
    trained, notes = _warmed_up(tmp_path / "examples", monkeypatch, ready=True, until="examples")
    assert trained.progress.imitated == {"default": 12}
    assert trained.progress.readiness == {}


def test_a_kl_penalty_compares_with_the_policy_after_the_warm_up(kept):
    start = WarmStart(
        lambda task: [{"role": "user", "content": task["word"]}, {"role": "assistant", "content": "aaaa"}],
        settings=WarmStartSettings(examples=8, batch_size=2, learning_rate=1e-2),
    )
    trained = algorithm(
        total_steps=3, tasks_per_step=2, samples_per_prompt=4, kl_coef=0.1, lora=LoraSettings(r=4), warm_start=start
    )
    Trainer(algorithm=trained, hooks=[AnyReward()], n_runners=8, logger=kept).fit(Letters(), TASKS)
    divergences = [row["kl"] for row in kept.rows if "kl" in row]
    assert divergences[0] == pytest.approx(0, abs=1e-6)
    assert divergences[-1] > 1e-5
