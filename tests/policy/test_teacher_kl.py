"""The divergence from a teacher's distribution: against loops, against autograd over all logits, and through a tree."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from helpers import group_of_conversations, tiny_policy
from mini_agentic_rl.policy import LearnerSettings, LossInputs, LossOutputs
from mini_agentic_rl.policy.head import divergence
from mini_agentic_rl.tokens import TokenTree, pack

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


def _loss(inputs):
    return LossOutputs((inputs.weights_S * inputs.teacher_kl_S).sum())


@pytest.mark.parametrize("count", [5, 0])
def test_a_tree_has_the_divergence_of_its_sequences_whatever_the_chunks(count):
    with tiny_policy() as policy:
        conversations = group_of_conversations(policy, rollouts=3, turns=2)
        tree = TokenTree()
        for number, records in enumerate(conversations):
            for record in records:
                tree.insert(record, number)
        packed = pack([tree])

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
                total = learner.forward_backward(packed, _loss, inputs)["loss"]
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
