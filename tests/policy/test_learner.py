"""The learner's optimizer: its learning rate, and the steps that it refuses or skips."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mini_agentic_rl.policy import (
    Learner,
    LearnerSettings,
    LoraSettings,
    LossInputs,
    LossOutputs,
    PolicyError,
    load_model,
)
from mini_agentic_rl.tokens import CompletionRecord, PackedTrees, TokenTree, pack
from tiny import tiny_model


@pytest.fixture(scope="module")
def model():
    return load_model(tiny_model(), lora=LoraSettings(r=2), device="cpu")


@pytest.fixture
def packed() -> PackedTrees:
    tree = TokenTree()
    tree.insert(CompletionRecord(np.array([1, 2]), np.array([3, 4, 5]), np.full(3, -1.0, np.float32)))
    return pack([tree])


def likelihood(inputs: LossInputs) -> LossOutputs:
    return LossOutputs(-(inputs.streams.weights_S * inputs.logprobs_S).sum(), {"terms": torch.ones(3).sum()})


def rates(model, **settings) -> list[float]:
    learner = Learner(model, LearnerSettings(learning_rate=1.0, **settings))
    return [round(learner.learning_rate(step), 3) for step in range(6)]


def test_the_learning_rate_rises_while_it_warms_up_and_falls_to_nothing(model):
    assert rates(model) == [1.0] * 6
    assert rates(model, warmup_steps=3) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert rates(model, schedule="linear", total_steps=4) == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert rates(model, schedule="cosine", total_steps=4) == [1.0, 0.854, 0.5, 0.146, 0.0, 0.0]


def test_a_schedule_that_falls_needs_its_end(model):
    with pytest.raises(PolicyError, match="schedule: 'cosine' needs `total_steps`"):
        Learner(model, LearnerSettings(schedule="cosine"))


def test_a_step_changes_the_weights_counts_a_version_and_forgets_the_gradients(model, packed):
    learner = Learner(model, LearnerSettings())
    version, before = model.version("default"), [p.detach().clone() for p in learner.parameters]
    metrics = learner.forward_backward(packed, likelihood)
    assert metrics["terms"] == 3
    assert metrics["loss"] > 0
    assert learner.optim_step()["skipped"] == 0
    assert (learner.steps, model.version("default")) == (1, version + 1)
    assert any(not torch.equal(one, other) for one, other in zip(before, learner.parameters, strict=True))
    assert all(p.grad is None for p in learner.parameters)


def test_gradients_add_up_until_the_step(model, packed):
    learner = Learner(model, LearnerSettings())
    learner.forward_backward(packed, likelihood)
    once = [p.grad.clone() for p in learner.parameters]
    learner.forward_backward(packed, likelihood)
    for one, both in zip(once, learner.parameters, strict=True):
        torch.testing.assert_close(2 * one, both.grad)
    learner.optim_step()


def test_a_gradient_that_is_not_finite_costs_the_step_and_nothing_else(model, packed):
    learner = Learner(model, LearnerSettings())
    version, before = model.version("default"), [p.detach().clone() for p in learner.parameters]
    learner.forward_backward(packed, lambda inputs: LossOutputs(inputs.logprobs_S.sum() * float("inf")))
    assert learner.optim_step()["skipped"] == 1
    assert model.version("default") == version
    assert all(torch.equal(one, other) for one, other in zip(before, learner.parameters, strict=True))
    assert all(p.grad is None for p in learner.parameters)


def test_metrics_alone_leave_no_gradient(model, packed):
    learner = Learner(model, LearnerSettings())
    assert learner.forward_backward(packed, likelihood, gradient=False)["loss"] > 0
    assert all(p.grad is None for p in learner.parameters)
