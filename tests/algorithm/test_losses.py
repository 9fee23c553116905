"""Losses, corrections, penalties and bonuses against references written as loops; losses of the user by name."""

from __future__ import annotations

import math
import textwrap
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from letters import TASKS, CountLetters, Letters, fit
from pydantic import ValidationError

from mini_agentic_rl import GRPOSettings, MiniGRPO, PPOSettings
from mini_agentic_rl.algorithm import PRESETS, register_loss
from mini_agentic_rl.algorithm.losses import (
    LOSSES,
    PolicyLoss,
    Surrogate,
    importance_correction,
    sum_to_go,
    term_weights,
    trajectory_sum,
)
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
    tokenizer = tiny_tokenizer()
    sizes = {"tasks_per_step": 2, "samples_per_prompt": 4, "max_new_tokens": 6, "epochs_per_batch": 2}
    trained = MiniGRPO(tiny_model(len(tokenizer)), tokenizer, total_steps=3, policy_loss="mine", **sizes)
    kept = fit(trained, Letters(), TASKS, [CountLetters()])
    steps = [row for row in kept.rows if "loss" in row]
    assert len(steps) == 3
    assert all(row["grad_norm"] > 0 for row in steps)
    assert all(terms.entropy_S.requires_grad and terms.reference_logprobs_S is not None for terms in seen)
    assert not torch.equal(seen[1].logprobs_S, seen[1].old_logprobs_S)  # the second pass over the first batch
    assert seen[1].rollout_S.abs().max() > 0


@pytest.mark.parametrize("returned", [None, torch.ones(2), Surrogate(torch.tensor(1.0)), Surrogate(torch.ones(2, 1))])
def test_a_loss_that_returns_no_number_for_each_term_is_an_error_that_names_the_setting(monkeypatch, returned):
    monkeypatch.setitem(LOSSES, "mine", PolicyLoss(lambda terms: returned))
    inputs = _inputs(np.ones(2), np.ones(2), np.ones(2), logprobs_S=torch.zeros(2))
    with pytest.raises(UserError, match="'mine' has to return a Surrogate") as caught:
        PolicyGradientLoss(policy_loss="mine")(inputs)
    assert caught.value.setting == "policy_loss"


ADVANTAGES = [1.2, -0.7, 0.3, -0.8]


def _logprobs():
    """log pi (a leaf), log pi_old of the learner, and log pi of the sampler, for all terms."""
    rng = np.random.default_rng(3)
    old = rng.normal(-2, 1, TRAJECTORY.size)
    current = torch.tensor(old + rng.normal(0, 0.4, old.size), requires_grad=True)
    return current, old, old + rng.normal(0, 0.5, old.size)


def _ours(loss, current, behaviour, aggregation="sequence", entropy=None, **inputs):
    inputs = {
        "weights_S": term_weights(LENGTHS, aggregation, 20).astype(np.float64)[TRAJECTORY],
        "advantages_S": np.array(ADVANTAGES)[TRAJECTORY],
        "logprobs_S": current,
        "behaviour_logprobs_S": behaviour,
        "entropy_S": np.zeros(TRAJECTORY.size) if entropy is None else entropy,
        **inputs,
    }
    return loss(LossInputs(**{name: torch.as_tensor(values) for name, values in inputs.items()})).loss


def _gradient(loss, leaf):
    (found,) = torch.autograd.grad(loss, leaf, retain_graph=True)
    return found.numpy()


def _assert_same(ours, reference, leaf):
    assert float(ours.detach()) == pytest.approx(float(reference.detach()), rel=1e-5)
    np.testing.assert_allclose(_gradient(ours, leaf), _gradient(reference, leaf), rtol=1e-5, atol=1e-12)
    assert np.abs(_gradient(ours, leaf)).max() > 0


def _mean(terms, aggregation):
    """The average of the numbers of all terms, as the paper of each aggregation writes it."""
    rollouts = [[term for term, own in zip(terms, TRAJECTORY, strict=True) if own == index] for index in range(4)]
    if aggregation == "token":
        return sum(map(sum, rollouts)) / sum(LENGTHS)
    if aggregation == "sequence":
        return sum(sum(terms) / len(terms) for terms in rollouts) / 4
    return sum(map(sum, rollouts)) / (4 * 20)


@pytest.mark.parametrize("aggregation", ["token", "sequence", "dr_grpo"])
@pytest.mark.parametrize("kl", [None, "k1", "k2", "k3"])
def test_the_loss_equals_the_loop_written_reference(aggregation, kl):
    """Equation 3 of the GRPO paper, one number at a time."""
    current, old, _ = _logprobs()
    references = old + np.random.default_rng(4).normal(0, 0.4, old.size)
    terms = []
    for term, trajectory in enumerate(TRAJECTORY):
        ratio, advantage = torch.exp(current[term] - old[term]), ADVANTAGES[trajectory]
        x = current[term] - references[term]
        penalty = {None: 0.0, "k1": x, "k2": x**2 / 2, "k3": torch.exp(-x) - 1 + x}[kl]
        terms.append(0.3 * penalty - torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage))
    loss = PolicyGradientLoss(0.2, 0.28, kl_coef=0.3 if kl else 0.0, kl_estimator=kl or "k3")
    ours = _ours(loss, current, old, aggregation, reference_logprobs_S=references)
    _assert_same(ours, _mean(terms, aggregation), current)


def test_no_sampled_token_is_an_error_that_says_so():
    with pytest.raises(ValueError, match="no trajectory has a sampled token"):
        term_weights([], "token", 1)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_truncated_importance_correction_weighs_the_ratio_to_the_learners_own_numbers(level):
    current, old, behaviour = _logprobs()
    cap = 1.4
    correction = importance_correction(level, old, behaviour, TRAJECTORY, cap)
    terms, capped = [], 0
    for term, index in enumerate(TRAJECTORY):
        where = [term] if level == "token" else np.flatnonzero(index == TRAJECTORY)
        mismatch = math.exp(sum(old[other] - behaviour[other] for other in where))
        capped += mismatch > cap
        ratio, advantage = torch.exp(current[term] - old[term]), ADVANTAGES[index]
        terms.append(-min(mismatch, cap) * torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage))
    assert 0 < capped < TRAJECTORY.size
    loss = PolicyGradientLoss(0.2, 0.28)
    ours = _ours(loss, current, behaviour, "token", old_logprobs_S=old, correction_S=correction)
    _assert_same(ours, _mean(terms, "token"), current)


def test_a_ratio_that_is_no_number_is_masked():
    far = importance_correction("icepop", np.array([800.0, -800.0, 0.0]), np.zeros(3), np.arange(3), 5.0, 0.5)
    assert far.tolist() == [0.0, 0.0, 1.0]


def test_the_entropy_bonus_is_the_weighted_mean_of_the_entropies():
    current, old, _ = _logprobs()
    entropy = torch.rand(TRAJECTORY.size, dtype=torch.float64, requires_grad=True)
    bonus = _ours(PolicyGradientLoss(entropy_coef=0.3), current, old, entropy=entropy)
    plain = _ours(PolicyGradientLoss(), current, old, entropy=entropy.detach())
    _assert_same(bonus, plain - 0.3 * _mean(entropy, "sequence"), entropy)


def test_the_return_of_a_token_is_less_by_the_penalty_of_all_tokens_to_come():
    rng = np.random.default_rng(0)
    order = rng.permutation(TRAJECTORY.size)  # trajectories may be interleaved, each in its own order
    trajectory, values = TRAJECTORY[order], rng.normal(size=TRAJECTORY.size)
    expected = [
        sum(values[later] for later in range(term, trajectory.size) if trajectory[later] == trajectory[term])
        for term in range(trajectory.size)
    ]
    np.testing.assert_allclose(sum_to_go(values, trajectory), expected)


@pytest.mark.parametrize(
    ("place", "estimator", "expected"),
    [("loss", "k1", "nothing"), ("loss", "k2", "reverse"), ("loss", "k3", "forward"), ("reward", "k1", "reverse")],
)
def test_each_kl_penalty_has_the_gradient_that_is_told_of_it(place, estimator, expected):
    """Exactly, by summing over all tokens of a small vocabulary instead of sampling them."""
    torch.manual_seed(0)
    logits = torch.randn(6, dtype=torch.float64, requires_grad=True)
    policy, reference = logits.log_softmax(-1), torch.randn(6, dtype=torch.float64).log_softmax(-1)
    inputs = LossInputs(
        policy.detach().exp(),
        torch.zeros(6, dtype=torch.float64),
        logprobs_S=policy,
        behaviour_logprobs_S=policy.detach(),
        entropy_S=torch.zeros(6),
    )
    loss = PolicyGradientLoss()
    if place == "loss":
        loss = PolicyGradientLoss(kl_coef=1.0, kl_estimator=estimator)
        inputs = replace(inputs, reference_logprobs_S=reference)
    else:
        inputs = replace(inputs, advantages_S=-(policy - reference).detach())
    found = _gradient(loss(inputs).loss, logits)
    divergence = {
        "nothing": 0 * logits.sum(),
        "reverse": (policy.exp() * (policy - reference)).sum(),
        "forward": (reference.exp() * (reference - policy)).sum(),
    }[expected]
    np.testing.assert_allclose(found, _gradient(divergence, logits), atol=1e-12)


def test_a_sequence_ratio_without_its_input_is_an_error():
    current, old, _ = _logprobs()
    with pytest.raises(ValueError, match="rollout_S"):
        _ours(PolicyGradientLoss(policy_loss="gspo"), current, old)
