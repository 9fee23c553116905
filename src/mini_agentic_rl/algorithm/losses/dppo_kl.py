"""`dppo_kl`: the trust region of `dppo_tv` in Kullback-Leibler divergence (DPPO; Qi et al. 2026, arXiv:2602.04879,
equations 11, 12 and 14).

    D = p_old log(p_old / p) + (1 - p_old) log((1 - p_old) / (1 - p)),    p = pi(token), p_old = pi_old(token)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import LossTerms, PolicyLoss, Surrogate
from .dppo_tv import within_divergence

if TYPE_CHECKING:
    from torch import Tensor

_SMALLEST = 1e-7
"""Least probability of the other tokens: in 32 bits that of the sampled one may round to 1."""


def binary_kl(logprobs_S: Tensor, old_logprobs_S: Tensor) -> Tensor:
    """Return D [S]."""
    old_S = old_logprobs_S.exp()
    rest_S, old_rest_S = ((1 - p_S).clamp(min=_SMALLEST) for p_S in (logprobs_S.exp(), old_S))
    return old_S * (old_logprobs_S - logprobs_S) + old_rest_S * (old_rest_S / rest_S).log()


def kl_divergence(terms: LossTerms) -> Surrogate:
    """Return M w A with the binary divergence KL(pi_old || pi) as D."""
    return within_divergence(terms, binary_kl(terms.logprobs_S.detach(), terms.old_logprobs_S))


LOSS = PolicyLoss(kl_divergence)
