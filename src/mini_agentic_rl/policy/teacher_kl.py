"""The divergence of the policy from a teacher in each state, over a teacher's likeliest tokens and all others as one.

With the K tokens that the teacher finds likeliest, and q and p what teacher and policy give to all others together,

    D = sum over the K tokens v of pi(v) (log pi(v) - log pi_T(v)) + p (log p - log q)

It is the reverse divergence KL(pi || pi_T) of the two distributions after the others were put together: a lower bound
of that over the vocabulary, which it is where K is all of it. Without the last term the policy could lower D by leaving
the K tokens. Logits exist for a block of states at a time, in the forward pass and again in the backward pass.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .model import PolicyModel

_SMALLEST = 1e-7
"""Least probability of all other tokens: the sum of the likeliest ones may round to 1."""


def teacher_kl(
    model: PolicyModel,
    hidden_NM: Tensor,
    temperature_N: Tensor,
    tokens_NK: Tensor | None,
    teacher_logprobs_NK: Tensor,
    *,
    rows: int,
) -> Tensor:
    """Return D [N] of N states, with a gradient.

    Args:
        hidden_NM: last hidden states of the policy.
        tokens_NK: the teacher's likeliest tokens; None where these are all of the vocabulary, in their order.
        rows: states whose logits exist at once.
    """
    found = []
    for start in range(0, hidden_NM.shape[0], rows):
        own = slice(start, start + rows)
        tokens = None if tokens_NK is None else tokens_NK[own]
        block = (model, hidden_NM[own], temperature_N[own], tokens, teacher_logprobs_NK[own])
        in_backward_too = torch.is_grad_enabled()
        found.append(checkpoint(_block, *block, use_reentrant=False) if in_backward_too else _block(*block))
    return torch.cat(found)


def _block(
    model: PolicyModel, hidden_RM: Tensor, temperature_R: Tensor, tokens_RK: Tensor | None, teacher_RK: Tensor
) -> Tensor:
    logprobs_RV = (model.logits(hidden_RM).float() / temperature_R[:, None]).log_softmax(-1)
    if tokens_RK is None:
        return divergence(logprobs_RV[:, : teacher_RK.shape[1]], teacher_RK, whole=True)
    return divergence(logprobs_RV.gather(1, tokens_RK), teacher_RK, whole=False)


def divergence(logprobs_RK: Tensor, teacher_RK: Tensor, *, whole: bool) -> Tensor:
    """Return D [R] from log pi and log pi_T of K tokens; `whole` where there are no others."""
    own_RK = logprobs_RK.exp()
    among_R = (own_RK * (logprobs_RK - teacher_RK)).sum(-1)
    if whole:
        return among_R
    rest_R, teacher_rest_R = ((1 - p_RK.sum(-1)).clamp(min=_SMALLEST) for p_RK in (own_RK, teacher_RK.exp()))
    return among_R + rest_R * (rest_R / teacher_rest_R).log()
