"""The tables of losses and variants: a new loss is a function with a decorator, or its name."""

from __future__ import annotations

import textwrap
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from letters import TASKS, CountLetters, Kept, Letters
from pydantic import ValidationError

from mini_agentic_rl import GRPOSettings, MiniGRPO, PPOSettings, Trainer
from mini_agentic_rl.algorithm import PRESETS, register_loss
from mini_agentic_rl.algorithm.losses import LOSSES, PolicyLoss, Surrogate, trajectory_sum
from mini_agentic_rl.algorithm.policy_gradient import PolicyGradientLoss
from mini_agentic_rl.commands import TrainConfig
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.policy import LossInputs
from tiny import tiny_model, tiny_tokenizer

LENGTHS = [5, 1, 9, 3]
TRAJECTORY = np.repeat(np.arange(4), LENGTHS)
LOW, HIGH, DIVERGENCE = 0.9, 1.15, 0.01


def _bounded(ratio, advantage):
    return torch.minimum(ratio * advantage, ratio.clamp(LOW, HIGH) * advantage)


def _clip(logprob, old, advantage, *_):
    return _bounded(torch.exp(logprob - old), advantage)


def _gspo(logprob, old, advantage, rollout_logprobs, rollout_old):
    total = sum(new - was for new, was in zip(rollout_logprobs, rollout_old, strict=True))
    return _bounded(torch.exp(total / len(rollout_old)), advantage)


def _cispo(logprob, old, advantage, *_):
    return torch.exp(logprob - old).detach().clamp(LOW, HIGH) * advantage * logprob


def _dppo(divergence):
    def reference(logprob, old, advantage, *_):
        ratio = torch.exp(logprob - old)
        leads_away = (advantage > 0 and ratio > 1) or (advantage < 0 and ratio < 1)
        beyond = divergence(float(torch.exp(logprob.detach())), np.exp(old)) > DIVERGENCE
        return 0 * logprob if leads_away and beyond else ratio * advantage

    return reference


def _total_variation(new, old):
    """Half of the sum of the differences of both entries of (p, 1 - p)."""
    return sum(abs(a - b) for a, b in ((new, old), (1 - new, 1 - old))) / 2


REFERENCES = {
    "clip": _clip,
    "gspo": _gspo,
    "cispo": _cispo,
    "dppo_tv": _dppo(_total_variation),
}
"""Objective of each loss at one term, from numbers of that term and of all terms of its rollout."""


def _inputs(weights, advantages, behaviour, **inputs):
    return LossInputs(
        torch.tensor(weights),
        torch.tensor(advantages),
        behaviour_logprobs_S=torch.tensor(behaviour),
        entropy_S=torch.zeros(len(weights)),
        **inputs,
    )


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_and_its_gradient_are_those_of_its_reference(name):
    rng = np.random.default_rng(7)
    old = rng.normal(-2, 1, TRAJECTORY.size)
    current = torch.tensor(old + rng.normal(0, 0.6, old.size), requires_grad=True)
    advantages = np.array([1.2, -0.7, 0.3, -0.8])[TRAJECTORY]
    weights = np.array([0.1, 0.3, 0.2, 0.4])[TRAJECTORY]
    over_rollouts = LOSSES[name].over_rollouts
    rollout = None if over_rollouts is None else over_rollouts(current.detach().numpy(), old, TRAJECTORY)
    loss = PolicyGradientLoss(1 - LOW, HIGH - 1, policy_loss=name, divergence_bound=DIVERGENCE)
    inputs = _inputs(weights, advantages, old, logprobs_S=current)
    found = loss(inputs if rollout is None else replace(inputs, rollout_S=torch.tensor(rollout)))
    expected = torch.zeros((), dtype=torch.float64)
    for term, trajectory in enumerate(TRAJECTORY):
        own = trajectory == TRAJECTORY
        objective = REFERENCES[name](current[term], old[term], advantages[term], current[own], old[own])
        expected = expected - weights[term] * objective
    assert float(found.loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-9)
    gradients = [torch.autograd.grad(total, current)[0].numpy() for total in (found.loss, expected)]
    np.testing.assert_allclose(*gradients, rtol=1e-9, atol=1e-12)
    assert 0 < float(found.metrics["clip_fraction"]) < weights.sum()


def test_the_choices_are_those_of_the_tables():
    choices = GRPOSettings.model_json_schema()["properties"]
    assert choices["policy_loss"]["enum"] == list(LOSSES) == ["clip", "gspo", "cispo", "dppo_tv"]
    assert choices["preset"]["enum"] == list(PRESETS)
    with pytest.raises(ValidationError, match="'clip', 'gspo', 'cispo' or 'dppo_tv'"):
        GRPOSettings(policy_loss="clap")
    with pytest.raises(ValidationError, match="reinforce"):
        GRPOSettings(preset="ppo2")
    with pytest.raises(ValidationError, match="`policy_loss=gspo` is GRPO's: with PPO take clip or cispo"):
        PPOSettings(policy_loss="gspo")


def test_a_loss_in_the_user_s_own_file_is_registered_or_named_by_module_and_function(tmp_path, monkeypatch):
    """CISPO in which a term of negative advantage has half of its weight."""
    monkeypatch.syspath_prepend(str(tmp_path))
    source = """
    from mini_agentic_rl.algorithm import Surrogate, register_loss
    from mini_agentic_rl.policy import LossInputs

    @register_loss("half_cispo")
    def half_cispo(terms: LossInputs) -> Surrogate:
        weight_S = terms.log_ratio_S.detach().exp().clamp(terms.bounds.low, terms.bounds.high)
        half_S = 1 - 0.5 * (terms.advantages_S < 0).float()
        return Surrogate(weight_S * half_S * terms.advantages_S * terms.logprobs_S)

    def reinforce(terms):
        return Surrogate(terms.advantages_S * terms.logprobs_S)

    seven = 7
    """
    (tmp_path / "own_losses.py").write_text(textwrap.dedent(source))
    try:
        assert GRPOSettings(policy_loss="own_losses:half_cispo").policy_loss == "own_losses:half_cispo"
        assert GRPOSettings(policy_loss="half_cispo").policy_loss == "half_cispo"
        assert LOSSES["own_losses:half_cispo"] is LOSSES["half_cispo"]
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a name that no choice lists is written to a run's folder as it is
            config = TrainConfig(policy_loss="own_losses:reinforce").model_dump(mode="json")
        assert config["loop"]["policy_loss"] == "own_losses:reinforce"
        for name, reason in (("no_module:f", "no_module"), ("own_losses:seven", "int, not a function")):
            with pytest.raises(UserError, match=reason):
                GRPOSettings(policy_loss=name)
        old = np.array([-1.0, -2.0])
        inputs = _inputs(np.ones(2), np.array([1.0, -1.0]), old, logprobs_S=torch.tensor(old))
        assert float(PolicyGradientLoss(policy_loss="half_cispo")(inputs).loss) == pytest.approx(1.0 - 1.0)
        with pytest.raises(ValueError, match="'clip' is taken by mini_agentic_rl"):
            register_loss("clip")(mean_log_ratio)
    finally:
        for name in ("half_cispo", "own_losses:half_cispo", "own_losses:reinforce"):
            LOSSES.pop(name, None)


def mean_log_ratio(logprobs_S, old_logprobs_S, trajectory_S):
    """log of a rollout's ratio over its number of tokens."""
    total_S = trajectory_sum(logprobs_S - old_logprobs_S, trajectory_S)
    return total_S / trajectory_sum(np.ones_like(total_S), trajectory_S)


def test_a_loss_of_ones_own_is_trained_with_by_its_name(monkeypatch):
    """It is given all that it says it needs: its own old log-probabilities, a reference, and entropies to maximise."""
    seen: list[LossInputs] = []

    def surrogate(terms: LossInputs) -> Surrogate:
        seen.append(terms)
        distance_S = terms.logprobs_S - terms.reference_logprobs_S
        objective_S = terms.log_ratio_S * terms.advantages_S - 0.1 * distance_S.square() + 0.01 * terms.entropy_S
        return Surrogate(objective_S)

    needs = frozenset({"old_logprobs", "reference_logprobs", "entropy_gradient"})
    monkeypatch.setitem(LOSSES, "mine", PolicyLoss(surrogate, needs, mean_log_ratio))
    tokenizer, kept = tiny_tokenizer(), Kept()
    sizes = {"tasks_per_step": 2, "samples_per_prompt": 4, "max_new_tokens": 6, "epochs_per_batch": 2}
    trained = MiniGRPO(tiny_model(len(tokenizer)), tokenizer, total_steps=3, policy_loss="mine", **sizes)
    Trainer(algorithm=trained, hooks=[CountLetters()], n_runners=8, logger=kept).fit(Letters(), TASKS)
    steps = [row for row in kept.rows if "loss" in row]
    assert len(steps) == 3
    assert all(row["grad_norm"] > 0 for row in steps)
    assert all(terms.entropy_S.requires_grad and terms.reference_logprobs_S is not None for terms in seen)
    assert not torch.equal(seen[1].logprobs_S, seen[1].old_logprobs_S)  # the second pass over the first batch
    assert seen[1].rollout_S.abs().max() > 0
