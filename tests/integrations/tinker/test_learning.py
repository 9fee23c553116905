"""Adapters of Tinker clients: targets packed as one tree, and each loss against a loop over tokens."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from mini_agentic_rl.integrations.tinker.losses import LOSSES, TargetSequence, loss_batch, pack_targets
from mini_agentic_rl.integrations.tinker.requests import LossDatum
from mini_agentic_rl.integrations.tinker.settings import RefusedError
from mini_agentic_rl.integrations.tinker.training import linear_layers, remove_adapter
from mini_agentic_rl.policy import (
    LearnerSettings,
    LoraSettings,
    LossOutputs,
    Policy,
    PolicyError,
    SeenTerms,
    add_adapter,
)
from tiny import tiny_model

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


assert {name for name, *_ in CASES} == set(LOSSES)


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
    with pytest.raises(RefusedError, match=r"data\[0\].model_input has 17 tokens, but the context holds 16"):
        loss_batch("ppo", {}, [datum(1, length=17)], **SIZES)


def sequence_of(tokens, places, targets) -> TargetSequence:
    return TargetSequence(np.array(tokens), np.array(places, np.int64), np.array(targets, np.int64))


def test_a_common_beginning_is_packed_once_and_every_asked_token_keeps_its_place():
    sequences = [
        sequence_of([1, 2, 3, 4], [0, 1, 2, 3], [2, 3, 4, 9]),
        sequence_of([1, 2, 7], [1, 1, 2], [7, 8, 5]),
        sequence_of([1, 2], [1], [6]),
    ]
    packed = pack_targets(sequences)
    assert packed.token_count == 5
    assert packed.target_S.tolist() == [2, 3, 4, 9, 7, 8, 5, 6]
    term = 0
    for number, sequence in enumerate(sequences):
        for place in sequence.place_N:
            at, path = int(packed.predicted_at_S[term]), []
            while at >= 0:
                path.append(int(packed.tokens_T[at]))
                at = int(packed.parent_T[at])
            assert path[::-1] == sequence.tokens_T[: place + 1].tolist()
            assert packed.trajectory_S[term] == number
            term += 1
    assert packed.term_count == term
    with pytest.raises(ValueError, match="have no targets"):
        pack_targets([sequence_of([1, 2], [], [])])


@pytest.fixture(scope="module")
def policy():
    policy = Policy.load(tiny_model(), lora=LoraSettings(r=1), dtype="float32")
    yield policy
    policy.close()


def test_an_added_adapter_changes_nothing_learns_by_itself_and_is_removed(policy):
    tokens = np.array([3, 4, 5, 6])
    # places with other tokens than the next one, and two tokens asked of one place
    packed = pack_targets([sequence_of(tokens, [0, 1, 1, 3], [4, 9, 5, 200])])

    def learnt(name: str) -> list[np.ndarray]:
        learner = policy.learner(LearnerSettings(optimizer="adamw"), name)
        found = []
        for _ in range(2):
            seen = SeenTerms(packed.term_count)
            learner.forward_backward(packed, lambda terms: LossOutputs(-terms.logprobs_S.sum()), seen=seen)
            learner.step_with(1e-2, float("inf"))
            found.append(seen.logprobs_S)
        return found

    def work() -> None:
        model = policy.model
        with torch.no_grad(), model.callable_by_others(), model.using(None):
            plain_TV = model.base(torch.tensor(tokens)[None]).logits[0].log_softmax(-1)
        bare = plain_TV[[0, 1, 1, 3], [4, 9, 5, 200]].numpy()
        draws = torch.get_rng_state()
        for name in ("one", "two"):
            add_adapter(model, name, LoraSettings(r=4), seed=1)
        assert torch.equal(draws, torch.get_rng_state())
        one, two = learnt("one"), learnt("two")
        assert one[0] == pytest.approx(bare, abs=1e-4)
        assert one[1].sum() > one[0].sum()
        assert two == [pytest.approx(each, abs=1e-6) for each in one]
        assert model.versions == {"default": 0, "one": 2, "two": 2}
        for refused, complaint in (("one", "adapter named 'one' already"), ("q_proj", "named"), ("a.b", "named")):
            with pytest.raises(PolicyError, match=complaint):
                add_adapter(model, refused, LoraSettings())
        for name in ("one", "two"):
            remove_adapter(model, name)
        assert (model.versions, model.adapters) == ({"default": 0}, ("default",))
        assert not [name for name, _ in model.base.named_parameters() if ".one." in name]
        for name in ("default", "nobody"):
            with pytest.raises(PolicyError, match="to remove"):
                remove_adapter(model, name)
        assert linear_layers(model, attention=True, mlp=False) == ("k_proj", "o_proj", "q_proj", "v_proj")
        assert linear_layers(model, attention=False, mlp=True) == ("down_proj", "gate_proj", "up_proj")

    policy.run(work)
