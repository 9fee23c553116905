"""Adapters that are added to a loaded model and removed from it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mini_agentic_rl.integrations.tinker.targets import TargetSequence, pack_targets
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


@pytest.fixture(scope="module")
def policy():
    policy = Policy.load(tiny_model(), lora=LoraSettings(r=1), dtype="float32")
    yield policy
    policy.close()


def test_an_added_adapter_changes_nothing_learns_by_itself_and_is_removed(policy):
    tokens = np.array([3, 4, 5, 6])
    # places with other tokens than the next one, and two tokens asked of one place
    packed = pack_targets([TargetSequence(tokens, np.array([0, 1, 1, 3]), np.array([4, 9, 5, 200]))])

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
        with pytest.raises(PolicyError, match="adapter named 'one' already"):
            add_adapter(model, "one", LoraSettings())
        for name in ("one", "two"):
            remove_adapter(model, name)
        assert (model.versions, model.adapters) == ({"default": 0}, ("default",))
        assert not [name for name, _ in model.base.named_parameters() if ".one." in name]

    policy.run(work)


def test_layers_are_told_apart_by_what_they_belong_to(policy):
    model = policy.model
    attention = policy.run(lambda: linear_layers(model, attention=True, mlp=False))
    assert attention == ("k_proj", "o_proj", "q_proj", "v_proj")
    assert policy.run(lambda: linear_layers(model, attention=False, mlp=True)) == ("down_proj", "gate_proj", "up_proj")
    with pytest.raises(PolicyError, match="no linear layers of that kind"):
        policy.run(lambda: linear_layers(model, attention=False, mlp=False))


@pytest.mark.parametrize("name", ["q_proj", "a.b", ""])
def test_a_name_that_is_part_of_the_model_is_refused(policy, name):
    with pytest.raises(PolicyError, match="cannot be named"):
        policy.run(lambda: add_adapter(policy.model, name, LoraSettings()))


def test_the_first_adapter_and_unknown_ones_are_not_removed(policy):
    for name in ("default", "nobody"):
        with pytest.raises(PolicyError, match="to remove"):
            policy.run(lambda name=name: remove_adapter(policy.model, name))
