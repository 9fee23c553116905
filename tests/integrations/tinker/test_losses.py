"""Each loss of a Tinker client against the same written as a loop over tokens, with its gradient."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from mini_agentic_rl.integrations.tinker.losses import LOSSES, loss_batch
from mini_agentic_rl.integrations.tinker.settings import RefusedError
from mini_agentic_rl.integrations.tinker.wire.data import LossDatum

SIZES = {"vocabulary": 50, "context_length": 16}


def datum(seed: int, length: int = 5, **inputs) -> LossDatum:
    random = np.random.default_rng(seed)
    given = {
        "target_tokens": random.integers(0, 50, length),
        "logprobs": random.normal(-2, 0.4, length).astype(np.float32),
        "advantages": random.normal(0, 1, length).astype(np.float32),
        **inputs,
    }
    return LossDatum(random.integers(0, 50, length), {k: v for k, v in given.items() if v is not None})


def clip(ratio: float, low: float, high: float) -> float:
    return min(max(ratio, low), high)


def by_loop(name: str, data: list[LossDatum], current: list[np.ndarray], config: dict[str, float]) -> tuple:
    """The loss and its derivative by each log-probability, worked out by hand."""
    low, high = config.get("clip_low_threshold", 0.8), config.get("clip_high_threshold", 1.2)
    total, slopes = 0.0, []
    for each, logprobs in zip(data, current, strict=True):
        mask = each.inputs.get("sequence_ratio_mask")
        if mask is not None:
            marked = [t for t in range(len(logprobs)) if mask[t]]
            mean = sum(logprobs[t] - each.inputs["logprobs"][t] for t in marked) / len(marked)
        for t, now in enumerate(logprobs):
            if name == "cross_entropy":
                weight = each.inputs["weights"][t] if "weights" in each.inputs else 1.0
                total -= weight * now
                slopes.append(-weight)
                continue
            old, advantage = each.inputs["logprobs"][t], each.inputs["advantages"][t]
            ratio = math.exp(now - old) if name != "gspo" else math.exp(mean)
            if "clip_low_threshold" in each.inputs:
                low, high = each.inputs["clip_low_threshold"][t], each.inputs["clip_high_threshold"][t]
            if name == "importance_sampling":
                total -= ratio * advantage
                slopes.append(-ratio * advantage)
            elif name in ("ppo", "gspo"):
                kept = ratio * advantage <= clip(ratio, low, high) * advantage
                total -= min(ratio * advantage, clip(ratio, low, high) * advantage)
                slopes.append(-ratio * advantage if kept else 0.0)
            elif name == "cispo":
                total -= clip(ratio, low, high) * advantage * now
                slopes.append(-clip(ratio, low, high) * advantage)
            else:
                beta = config.get("beta", 0.05)
                total -= advantage * now - beta / 2 * (now - old) ** 2
                slopes.append(-(advantage - beta * (now - old)))
    return total, slopes


CASES = [
    ("cross_entropy", {"logprobs": None, "advantages": None}, {}),
    ("cross_entropy", {"logprobs": None, "advantages": None, "weights": np.array([0, 0.5, 1, -2, 0], "f4")}, {}),
    ("importance_sampling", {}, {}),
    ("ppo", {}, {}),
    ("ppo", {}, {"clip_low_threshold": 0.95, "clip_high_threshold": 1.05}),
    (
        "ppo",
        {"clip_low_threshold": np.linspace(0.5, 1, 5, dtype="f4"), "clip_high_threshold": np.full(5, 1.1, "f4")},
        {},
    ),
    ("cispo", {}, {"clip_high_threshold": 1.5}),
    ("dro", {}, {"beta": 0.3}),
    ("gspo", {"sequence_ratio_mask": np.array([0, 0, 1, 1, 1], "f4")}, {}),
]


@pytest.mark.parametrize(("name", "inputs", "config"), CASES)
def test_a_loss_and_its_gradient_are_those_of_a_loop_over_tokens(name, inputs, config):
    data = [datum(seed, **inputs) for seed in (1, 2)]
    batch = loss_batch(name, config, data, **SIZES)
    current = [np.random.default_rng(9 + n).normal(-2, 0.4, 5).astype(np.float32) for n in range(2)]
    logprobs_S = torch.tensor(np.concatenate(current), requires_grad=True)
    inputs = batch.inputs
    if batch.ratio_mask_S is not None:
        inputs = inputs.select(torch.arange(10))
        object.__setattr__(inputs, "rollout_S", batch.sequence_log_ratios(np.concatenate(current)))
    loss = batch(replace(inputs, logprobs_S=logprobs_S)).loss
    loss.backward()
    expected, slopes = by_loop(name, data, current, config)
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    assert logprobs_S.grad.numpy() == pytest.approx(np.array(slopes), rel=1e-4, abs=1e-6)


def test_the_cases_are_all_losses():
    assert {name for name, *_ in CASES} == set(LOSSES)


@pytest.mark.parametrize(
    ("name", "config", "changed", "complaint"),
    [
        ("kto", {}, {}, "unknown loss 'kto': there are cross_entropy, importance_sampling"),
        ("ppo", {"beta": 0.1}, {}, "loss_fn_config.beta is unknown: 'ppo' takes"),
        ("dro", {"beta": math.nan}, {}, "loss_fn_config.beta must be a finite number"),
        ("ppo", {}, {"advantages": None}, r"data\[1\].loss_fn_inputs has no 'advantages', which 'ppo' needs"),
        ("ppo", {}, {"mask": np.ones(5, "f4")}, r"data\[1\].loss_fn_inputs.mask is unknown: 'ppo' takes"),
        ("ppo", {}, {"target_tokens": np.full(5, 50)}, "the token id 50, which is outside 0..49"),
        ("ppo", {}, {"target_tokens": np.full(4, 1)}, "has 4 rows, but model_input has 5 tokens"),
        ("ppo", {}, {"logprobs": np.zeros(4, "f4")}, r"logprobs has the shape \[4\], but target_tokens \[5\]"),
        ("ppo", {}, {"logprobs": np.array([0, 0, np.inf, 0, 0], "f4")}, "logprobs holds a number that is not finite"),
        ("ppo", {}, {"target_tokens": np.zeros(5, "f4")}, "must be whole numbers"),
    ],
)
def test_data_that_a_loss_cannot_read_are_refused_with_the_field_at_fault(name, config, changed, complaint):
    with pytest.raises(RefusedError, match=complaint):
        loss_batch(name, config, [datum(1), datum(2, **changed)], **SIZES)


def test_a_sequence_beyond_the_context_is_refused():
    with pytest.raises(RefusedError, match=r"data\[0\].model_input has 17 tokens, but the context holds 16"):
        loss_batch("ppo", {}, [datum(1, length=17)], **SIZES)
