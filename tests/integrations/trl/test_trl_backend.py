"""The same job on TRL's GRPOTrainer: the rows it is given, the gradient of the native backend, its checkpoints."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from letters import TASKS, CountLetters, Letters, algorithm, weights_digest

from gateway.small_tokenizer import small_tokenizer
from helpers import group_of_conversations, tiny_policy
from mini_agentic_rl import MiniGRPO, Trainer
from mini_agentic_rl.algorithm.groups import Group, Trajectory, credit_calls
from mini_agentic_rl.algorithm.grpo import GRPOObjective
from mini_agentic_rl.algorithm.settings import GRPOSettings
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.integrations.trl.step_trainer import TRLObjective, row_of
from mini_agentic_rl.metrics import MetricsLogger
from mini_agentic_rl.policy import LearnerSettings, PolicyError
from mini_agentic_rl.tokens import CompletionRecord
from mini_agentic_rl.trainer import RunFolder

pytest.importorskip("trl", reason="trl is not installed: the TRL backend is left unchecked")


def _groups(policy):
    """Two tasks, four rollouts each of one to three turns, at the temperature of the conversations."""
    return [
        Group(
            str(task),
            [
                Trajectory(f"{task}/{n}", records[: 1 + (n + task) % 3], float(n * n % 3))
                for n, records in enumerate(group_of_conversations(policy, seed=task))
            ],
        )
        for task in range(2)
    ]


def _first_moments(learner):
    """What AdamW took from its first gradient: the gradient, clipped, times 1 - beta."""
    return torch.cat([learner.optimizer.state[p]["exp_avg"].flatten() for p in learner.parameters])


@pytest.mark.parametrize(
    "options", [{}, {"loss_aggregation": "token"}, {"loss_aggregation": "dr_grpo"}, {"kl_coef": 0.2}], ids=str
)
def test_the_gradient_is_that_of_the_native_backend(options):
    settings = GRPOSettings(
        tasks_per_step=2, samples_per_prompt=4, temperature=0.9, normalize_advantage=False, **options
    )
    with tiny_policy() as policy:
        groups = _groups(policy)
        start = {name: value.clone() for name, value in policy.model.base.state_dict().items()}
        found = {}
        for backend in ("native", "trl"):
            learner = policy.run(lambda: policy.learner(LearnerSettings()))
            learners = {"default": learner}
            objective = (
                GRPOObjective(learners, settings)
                if backend == "native"
                else TRLObjective(policy.model, learners, small_tokenizer(), settings)
            )
            figures = policy.run(lambda o=objective: o.update("default", groups))
            found[backend] = figures, _first_moments(learner)
            assert learner.steps == 1
            policy.run(lambda: policy.model.base.load_state_dict(start))
        assert policy.version == 2
    (native, gradient), (trl, by_trl) = found["native"], found["trl"]
    assert (gradient - by_trl).norm() / gradient.norm() < 1e-3
    assert trl["grad_norm"] == pytest.approx(native["grad_norm"], rel=1e-3)
    assert trl["entropy"] == pytest.approx(native["entropy"], rel=0.05)  # TRL's is a mean of the passes' means
    assert trl["learning_rate"] == native["learning_rate"]
    assert ("kl" in trl) == ("kl_coef" in options)
    if "kl" in trl:
        assert trl["kl"] == pytest.approx(native["kl"], rel=0.2)


def test_rollouts_that_gave_nothing_leave_a_gap_that_has_no_weight():
    settings = GRPOSettings(tasks_per_step=2, samples_per_prompt=4, temperature=0.9, loss_aggregation="token")
    with tiny_policy() as policy:
        full, other = _groups(policy)
        gaps = [Group("a", full.trajectories[:3]), Group("b", [])]
        learner = policy.run(lambda: policy.learner(LearnerSettings()))
        objective = TRLObjective(policy.model, {"default": learner}, small_tokenizer(), settings)
        figures = policy.run(lambda: objective.update("default", gaps))
        assert 0 < figures["grad_norm"] < 100
        assert all(bool(p.isfinite().all()) for p in learner.parameters)
        equal = [Group("c", [Trajectory("r", t.records, 1.0) for t in other.trajectories]), Group("d", [])]
        assert "grad_norm" not in policy.run(lambda: objective.update("default", equal))
        assert learner.steps == 1


def test_a_run_gone_on_with_ends_with_the_weights_of_an_unbroken_one(tmp_path):
    def run(folder, steps, resume=False):
        options = {"tasks_per_step": 2, "samples_per_prompt": 2, "checkpoint_every": 1, "deterministic": True}
        trained = algorithm(total_steps=steps, backend="trl", epochs_per_batch=2, **options)
        trained.learner_settings = LearnerSettings(learning_rate=3e-3, schedule="linear", total_steps=5)
        Trainer(
            algorithm=trained,
            hooks=[CountLetters()],
            n_runners=8,
            output_dir=RunFolder(folder),  # kept by nobody: a run is resumed with more steps
            logger=MetricsLogger(),
            resume=resume,
        ).fit(Letters(), TASKS)
        return weights_digest(folder)

    unbroken = run(tmp_path / "unbroken", 2)
    run(tmp_path / "broken", 1)
    assert run(tmp_path / "broken", 2, resume=True) == unbroken


def _record(prompt, output, *, forced=None, temperature=1.0):
    return CompletionRecord(
        np.array(prompt),
        np.array(output),
        -np.array(output, np.float32) / 10,
        forced=None if forced is None else np.array(forced),
        temperature=temperature,
    )


THREE_TURNS = [
    _record([1, 2], [3, 4]),
    _record([1, 2, 3, 4, 90, 91], [5, 6], forced=[True, False]),
    _record([1, 2, 3, 4, 90, 91, 5, 6, 92], [7]),
]


def test_three_turns_are_one_completion_with_what_was_not_sampled_under_the_mask():
    row = row_of(Trajectory("r", THREE_TURNS, 0.5), 1.0)
    assert row.prompt_ids == [1, 2]
    assert row.completion_ids == [3, 4, 90, 91, 5, 6, 92, 7]
    assert row.mask == [1, 1, 0, 0, 0, 1, 0, 1]
    assert row.logprobs == pytest.approx([-0.3, -0.4, 0, 0, 0, -0.6, 0, -0.7])
    assert row.reward == 0.5


def test_only_the_last_call_is_trained_where_that_was_asked_for():
    credit = credit_calls("last_call", THREE_TURNS, 0.5, np.zeros(3), 0.5)
    row = row_of(Trajectory("r", THREE_TURNS, 0.5, *credit), 1.0)
    assert row.mask == [0, 0, 0, 0, 0, 0, 0, 1]


def test_calls_that_do_not_continue_each_other_or_have_another_temperature_are_refused():
    for second in ([1, 2, 3, 9, 90], [8, 8, 8], [1, 2]):
        records = [THREE_TURNS[0], _record(second, [5])]
        with pytest.raises(UserError, match=r"call 2 of rollout r does not continue .* `backend=native`"):
            row_of(Trajectory("r", records, 1.0), 1.0)
    with pytest.raises(UserError, match=r"sampled at 0\.7"):
        row_of(Trajectory("r", [_record([1], [2], temperature=0.7)], 1.0), 1.0)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"preset": "rloo"}, "baseline='leave_one_out'"),
        ({"preset": "reinforce++"}, "advantage_normalization='batch'"),
        ({"preset": "dapo"}, "dynamic_sampling=True"),
        ({"policy_loss": "gspo", "loss_aggregation": "sequence"}, "policy_loss='gspo'"),
        ({"credit": "per_turn"}, "credit='per_turn'"),
        ({"kl_coef": 0.1, "kl_estimator": "k2"}, "kl_estimator='k2'"),
        ({"max_update_kl": 0.01}, r"max_update_kl=0\.01"),
        ({"adapters": ("a", "b")}, "several adapters"),
        ({"fixed_adapters": {"a": "folder"}}, "fixed_adapters"),
    ],
)
def test_what_trl_does_not_do_is_refused_by_name(options, complaint):
    with pytest.raises(UserError, match=complaint):
        MiniGRPO("embedded", backend="trl", **options)


def test_a_preset_that_trl_knows_is_taken_and_another_backend_is_not():
    MiniGRPO("embedded", backend="trl", preset="dr_grpo", max_update_kl=0)
    with pytest.raises(PolicyError, match="backend: must be 'native' or 'trl'"):
        MiniGRPO("embedded", backend="vllm")
