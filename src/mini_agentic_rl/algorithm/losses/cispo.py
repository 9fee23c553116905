"""`cispo`: the log-probability under a clipped weight (CISPO; MiniMax-M1, arXiv:2506.13585, equations 4 and 5).

    J = sg[clip(w, low, high)] A log pi

The weight is cut off, the term is not: every token keeps a gradient.
"""

from __future__ import annotations

from .base import LossTerms, PolicyLoss, Surrogate


def detached_ratio(terms: LossTerms) -> Surrogate:
    """Return sg[clip(w, low, high)] A log pi, where sg stops gradients."""
    ratio_S = terms.log_ratio_S.detach().exp()
    weight_S = ratio_S.clamp(terms.bounds.low, terms.bounds.high)
    return Surrogate(weight_S * terms.advantages_S * terms.logprobs_S, weight_S != ratio_S)


LOSS = PolicyLoss(detached_ratio)
