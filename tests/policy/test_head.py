"""Log-probabilities, entropies and divergences from a teacher, against a plain softmax over all logits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from helpers import group_of_conversations, pack_rollouts, tiny_policy
from mini_agentic_rl.policy import LearnerSettings, LoraSettings, LossInputs, LossOutputs, head
from mini_agentic_rl.policy.head import divergence


@pytest.mark.parametrize("block", [7, 16, 1000])
@pytest.mark.parametrize("sharpness", [1.0, 30.0])
def test_it_equals_a_softmax_over_all_logits(monkeypatch, block, sharpness):
    monkeypatch.setattr(head, "VOCAB_BLOCK", block)
    torch.manual_seed(0)
    hidden = (torch.randn(6, 12) * sharpness).requires_grad_()
    weight, scale = torch.randn(50, 12), torch.rand(6) + 0.5
    rows, tokens = torch.tensor([0, 0, 1, 3, 3, 3, 5]), torch.tensor([3, 49, 7, 0, 0, 21, 14])
    weights = torch.randn(7)
    logits = (hidden @ weight.T).double() * scale[:, None]
    everything = logits.log_softmax(-1)
    expected = everything[rows, tokens]
    (weights * expected).sum().backward(retain_graph=True)
    gradient, hidden.grad = hidden.grad.clone(), None
    entropy = -(everything.exp() * everything).sum(-1)[rows]
    logprobs, found_entropy = head.frozen_head_logprobs(hidden, weight, scale, rows, tokens)
    (weights * logprobs).sum().backward()
    torch.testing.assert_close(logprobs.double(), expected, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(found_entropy.double(), entropy, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(hidden.grad, gradient, atol=1e-5, rtol=1e-4)
    assert not found_entropy.requires_grad

    hidden.grad = None
    (weights * expected + weights.flip(0) * entropy).sum().backward()
    gradient, hidden.grad = hidden.grad.clone(), None
    both = head.frozen_head_logprobs(hidden, weight, scale, rows, tokens, entropy_gradient=True)
    (weights * both[0] + weights.flip(0) * both[1]).sum().backward()
    torch.testing.assert_close(both[1].double(), entropy, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(hidden.grad, gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("of_entropy", [False, True])
def test_the_gradient_at_a_nearly_certain_position_survives_16_bits(of_entropy):
    """W_t minus the mean of all W is then a small difference of large numbers."""
    torch.manual_seed(0)
    weight = torch.randn(40, 16)
    hidden = weight[5:6] * 0.9
    exact = hidden.double().requires_grad_()
    everything = (exact @ weight.double().T).log_softmax(-1)
    (-(everything.exp() * everything).sum() if of_entropy else everything[0, 5]).backward()
    rounded = hidden.bfloat16().requires_grad_()
    inputs = (weight.bfloat16(), torch.ones(1), torch.tensor([0]), torch.tensor([5]))
    head.frozen_head_logprobs(rounded, *inputs, entropy_gradient=of_entropy)[of_entropy].sum().backward()
    assert 0 < float(exact.grad.norm()) < (0.5 if of_entropy else 0.1)
    assert float((rounded.grad.double() - exact.grad).norm() / exact.grad.norm()) < 0.1


@pytest.mark.parametrize("lora", [None, LoraSettings()])
def test_an_entropy_bonus_has_the_gradient_of_the_entropy_through_all_layers(lora):
    """In chunks, through a frozen head (LoRA) and through one that is trained, against whole sequences at once."""
    with tiny_policy(lora=lora) as policy:
        records = [record for call in group_of_conversations(policy, rollouts=2, turns=2) for record in call]
        packed = pack_rollouts([[record] for record in records])

        def chunked():
            learner = policy.learner(LearnerSettings(head_rows=5, max_batch_tokens=13))
            learner.forward_backward(packed, lambda inputs: LossOutputs(inputs.entropy_S.sum()), entropy_gradient=True)
            return [take_gradient(parameter) for parameter in learner.parameters]

        def whole():
            learner = policy.learner(LearnerSettings())
            policy.model.base.set_attn_implementation("sdpa")
            for record in records:
                tokens = torch.tensor([*record.prompt_ids, *record.output_ids])[None]
                with policy.model.using("default"):
                    logits = policy.model.base(tokens, use_cache=False).logits[0] / record.temperature
                everything = logits[record.prompt_ids.size - 1 : -1].log_softmax(-1)
                (-(everything.exp() * everything).sum()).backward()
            return [take_gradient(parameter) for parameter in learner.parameters]

        def take_gradient(parameter):
            found, parameter.grad = parameter.grad.flatten().clone(), None
            return found

        found, expected = torch.cat(policy.run(chunked)), torch.cat(policy.run(whole))
    assert expected.norm() > 0
    assert (found - expected).norm() / expected.norm() < 1e-4


V, R, K = 7, 4, 3


def _distributions(seed):
    torch.manual_seed(seed)
    return torch.randn(R, V, dtype=torch.float64)


@pytest.mark.parametrize("whole", [True, False])
def test_the_divergence_is_that_of_the_distributions_with_all_other_tokens_as_one(whole):
    logits = _distributions(0).requires_grad_()
    teacher = _distributions(1).log_softmax(-1)
    best, tokens = (teacher, None) if whole else teacher.topk(K)
    own = logits.log_softmax(-1) if tokens is None else logits.log_softmax(-1).gather(1, tokens)
    found = divergence(own, best, whole=whole)
    for row in range(R):
        p, q = (values[row].detach().softmax(-1).tolist() for values in (logits, teacher))
        groups = [[v] for v in range(V)]
        if tokens is not None:
            listed = tokens[row].tolist()
            groups = [[v] for v in listed] + [[v for v in range(V) if v not in listed]]
        expected = 0.0
        for group in groups:
            own_mass, teacher_mass = sum(p[v] for v in group), sum(q[v] for v in group)
            expected += own_mass * math.log(own_mass / teacher_mass)
        assert float(found[row].detach()) == pytest.approx(expected, rel=1e-6)
    exact = (logits.softmax(-1) * (logits.log_softmax(-1) - teacher)).sum(-1)
    assert bool((found <= exact + 1e-12).all())
    if whole:
        torch.testing.assert_close(
            torch.autograd.grad(found.sum(), logits, retain_graph=True), torch.autograd.grad(exact.sum(), logits)
        )


def test_a_policy_that_is_its_teacher_has_no_divergence_and_certain_ones_have_a_finite_one():
    same = _distributions(0).log_softmax(-1).topk(K).values
    torch.testing.assert_close(divergence(same, same, whole=False), torch.zeros(R, dtype=torch.float64))
    certain = torch.tensor([[0.0, -40.0]])
    assert torch.isfinite(divergence(certain, torch.tensor([[-40.0, 0.0]]), whole=False)).all()


def _divergence_loss(inputs):
    return LossOutputs((inputs.weights_S * inputs.teacher_kl_S).sum())


@pytest.mark.parametrize("count", [5, 0])
def test_a_tree_has_the_divergence_of_its_sequences_whatever_the_chunks(count):
    with tiny_policy() as policy:
        conversations = group_of_conversations(policy, rollouts=3, turns=2)
        packed = pack_rollouts(conversations)

        def job():
            model, found = policy.model, []
            for tokens in (33, 500):
                learner = policy.learner(LearnerSettings(max_batch_tokens=tokens, head_rows=7))
                likeliest = learner.scorer(None).likeliest(packed, count)
                inputs = LossInputs(
                    torch.ones(packed.term_count),
                    teacher_tokens_SK=likeliest.tokens_SK,
                    teacher_logprobs_SK=likeliest.logprobs_SK,
                )
                total = learner.forward_backward(packed, _divergence_loss, inputs)["loss"]
                found.append((total, [p.grad.clone() for p in learner.parameters]))
                for parameter in learner.parameters:
                    parameter.grad = None
            # Sequence by sequence, through the model as transformers calls it.
            expected = 0.0
            with model.callable_by_others(), torch.no_grad():
                for records in conversations:
                    for record in records:
                        ids = torch.tensor([[*record.prompt_ids.tolist(), *record.output_ids.tolist()]])
                        at = slice(record.prompt_ids.size - 1, ids.shape[1] - 1)
                        logits = []
                        for adapter in ("default", None):
                            with model.using(adapter):
                                logits.append(model.base(input_ids=ids).logits[0, at] / record.temperature)
                        own, teacher = (one.double().log_softmax(-1) for one in logits)
                        if count:
                            best, where = teacher.topk(count)
                            expected += float(divergence(own.gather(1, where), best, whole=False).sum())
                        else:
                            expected += float((own.exp() * (own - teacher)).sum())
            return found, expected

        ((small, gradients), (large, others)), expected = policy.run(job)
    assert small == pytest.approx(large, rel=1e-4)
    assert small == pytest.approx(expected, rel=1e-3)
    for one, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)
    assert np.isfinite(expected)
    assert expected > 0.1
