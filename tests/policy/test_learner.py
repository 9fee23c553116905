"""The learner's optimizer: its learning rate, and the steps that it refuses or skips."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers import pack_rollouts, tiny_policy
from mini_agentic_rl.policy import (
    Learner,
    LearnerSettings,
    LoraSettings,
    LossInputs,
    LossOutputs,
    PolicyError,
    load_model,
    save_weights,
)
from mini_agentic_rl.tokens import CompletionRecord, PackedTrees
from tiny import tiny_model


@pytest.fixture(scope="module")
def model():
    return load_model(tiny_model(), lora=LoraSettings(r=2), device="cpu")


@pytest.fixture
def packed() -> PackedTrees:
    return pack_rollouts([[CompletionRecord(np.array([1, 2]), np.array([3, 4, 5]), np.full(3, -1.0, np.float32))]])


def likelihood(inputs: LossInputs) -> LossOutputs:
    return LossOutputs(-(inputs.weights_S * inputs.logprobs_S).sum(), {"terms": torch.ones(3).sum()})


def rates(model, **settings) -> list[float]:
    learner = Learner(model, LearnerSettings(learning_rate=1.0, **settings))
    return [round(learner.learning_rate(step), 3) for step in range(6)]


def test_the_learning_rate_rises_while_it_warms_up_and_falls_to_nothing(model):
    assert rates(model) == [1.0] * 6
    assert rates(model, warmup_steps=3) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert rates(model, total_steps=4) == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert rates(model, schedule="cosine", total_steps=4) == [1.0, 0.854, 0.5, 0.146, 0.0, 0.0]
    with pytest.raises(PolicyError, match="schedule: 'cosine' needs `total_steps`"):
        rates(model, schedule="cosine")


def test_a_step_changes_the_weights_counts_a_version_and_forgets_the_gradients(model, packed):
    learner = Learner(model, LearnerSettings())
    version, before = model.version("default"), [p.detach().clone() for p in learner.parameters]
    assert learner.forward_backward(packed, likelihood, gradient=False)["loss"] > 0
    assert all(p.grad is None for p in learner.parameters)
    metrics = learner.forward_backward(packed, likelihood)
    assert metrics["terms"] == 3
    assert metrics["loss"] > 0
    assert learner.optim_step()["skipped"] == 0
    assert (learner.steps, model.version("default")) == (1, version + 1)
    assert any(not torch.equal(one, other) for one, other in zip(before, learner.parameters, strict=True))
    assert all(p.grad is None for p in learner.parameters)


def test_the_reference_stays_what_was_kept_while_the_weights_go_on(model, packed, tmp_path):
    learner = Learner(model, LearnerSettings(learning_rate=0.1))

    def step() -> None:
        learner.forward_backward(packed, likelihood)
        learner.optim_step()

    step()
    without_adapter, at_first = learner.logprobs(packed, reference=True), learner.logprobs(packed)
    learner.keep_reference()
    step()
    now, weights = learner.logprobs(packed), [p.detach().clone() for p in learner.parameters]
    assert torch.equal(learner.logprobs(packed, reference=True), at_first)
    assert not torch.equal(at_first, now)
    assert not torch.equal(at_first, without_adapter)
    assert all(torch.equal(one, other) for one, other in zip(weights, learner.parameters, strict=True))
    learner.save_state(tmp_path / "optimizer.pt")
    resumed = Learner(model, LearnerSettings())
    resumed.load_state(tmp_path / "optimizer.pt")
    assert torch.equal(resumed.logprobs(packed, reference=True), at_first)


def test_a_gradient_that_is_not_finite_costs_the_step_and_nothing_else(model, packed):
    learner = Learner(model, LearnerSettings())
    version, before = model.version("default"), [p.detach().clone() for p in learner.parameters]
    learner.forward_backward(packed, lambda inputs: LossOutputs(inputs.logprobs_S.sum() * float("inf")))
    assert learner.optim_step()["skipped"] == 1
    assert model.version("default") == version
    assert all(torch.equal(one, other) for one, other in zip(before, learner.parameters, strict=True))
    assert all(p.grad is None for p in learner.parameters)


def _gradients(learner, packed) -> list[torch.Tensor]:
    learner.forward_backward(packed, likelihood)
    found = [p.grad.clone() for p in learner.parameters]
    learner.optim_step()
    return found


@pytest.mark.parametrize("checkpointing", [False, True])
def test_dropout_is_for_learning_alone(packed, checkpointing):
    with tiny_policy(lora=LoraSettings(r=8, lora_alpha=16, lora_dropout=0.5)) as policy:
        learner = policy.learner(LearnerSettings(learning_rate=1e-9, checkpointing=checkpointing))
        assert learner.drops
        before = learner.logprobs(packed)
        one, other = _gradients(learner, packed), _gradients(learner, packed)
        assert any(not torch.equal(a, b) for a, b in zip(one, other, strict=True))
        torch.testing.assert_close(learner.logprobs(packed), before)
        loss = [learner.forward_backward(packed, likelihood, gradient=False)["loss"] for _ in range(2)]
        assert loss[0] == loss[1]

        def fails(_: LossInputs) -> LossOutputs:
            raise MemoryError

        with pytest.raises(MemoryError):
            learner.forward_backward(packed, fails)
        assert not any(module.training for module in policy.model.base.modules())


def test_the_gradient_with_dropout_is_on_average_that_without(packed):
    """The gradient of B is linear in what is dropped, as long as B is zero."""
    torch.manual_seed(0)
    model = load_model(tiny_model(), lora=LoraSettings(r=2, dropout=0.25), device="cpu", seed=0)
    learner = Learner(model, LearnerSettings(learning_rate=1e-12))
    rows = [torch.cat([gradient.flatten() for gradient in _gradients(learner, packed)]) for _ in range(60)]
    plain = Learner(load_model(tiny_model(), lora=LoraSettings(r=2), device="cpu", seed=0), LearnerSettings())
    assert not plain.drops
    expected = torch.cat([gradient.flatten() for gradient in _gradients(plain, packed)])
    assert (torch.stack(rows).mean(0) - expected).norm() < 0.15 * expected.norm()
    assert (rows[0] - expected).norm() > 0.2 * expected.norm()


def test_the_base_drops_nothing(packed):
    base = tiny_model()
    base.model.layers[0].mlp.act_fn = torch.nn.Sequential(torch.nn.SiLU(), torch.nn.Dropout(0.5))
    learner = Learner(load_model(base, lora=LoraSettings(r=2), device="cpu"), LearnerSettings(checkpointing=True))
    losses = {learner.forward_backward(packed, likelihood)["loss"] for _ in range(2)}
    assert len(losses) == 1


def test_an_adapter_goes_on_with_the_dropout_that_is_asked_for_now(tmp_path):
    first = load_model(tiny_model(), lora=LoraSettings(r=2, dropout=0.5), device="cpu")
    save_weights(first, tmp_path)
    for asked, drops in ((None, False), (LoraSettings(dropout=0.1), True)):
        model = load_model(tiny_model(), lora=asked, adapter=tmp_path, device="cpu")
        assert Learner(model, LearnerSettings()).drops is drops
