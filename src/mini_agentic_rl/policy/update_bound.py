"""Shortens an optimizer step until it moves the policy by no more than a bound.

AdamW divides a gradient by its own size, so the first steps of a fresh optimizer, and those after many small gradients,
move every weight by the whole learning rate, whatever the batch has to say. One such step can unlearn what an agent
could do. How far a step has moved the policy can be measured, on the very tokens that it learnt from:

    KL(pi_before || pi_after) ~ mean over sampled tokens of r - 1 - log r,  r = pi_after / pi_before

(Schulman, "Approximating KL divergence", 2020: k3, unbiased where pi_before sampled them). A step that is too long is
taken back in part, as in the line search of TRPO (Schulman et al. 2015, arXiv:1502.05477, appendix C).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ..tokens import PackedTrees, divide
from .learner import Learner
from .loss import SeenTerms

_PARTS: Final = 4
"""A step is measured on one of so many parts of its trees first, and on all of them only where that comes near the
bound: most steps are far below it, and a pass over all trees costs half of what the learning itself does."""
_NEAR: Final = 0.3
"""Share of the bound from which on all are measured."""
_SHORTEST: Final = 1e-3
"""Share of a step beyond which it is not shortened: the rest is rounding."""
_FACTORS: Final = (0.1, 0.5)
"""The least and the most of a step that a try leaves of it."""


def bounded_step(
    learner: Learner, packed: PackedTrees, sampled: int, max_kl: float, seen: SeenTerms
) -> dict[str, float]:
    """Take the optimizer step of `learner` that its gradients call for, or so much of it as the bound allows.

    Costs a pass without a gradient over a quarter of `packed`; where that comes near the bound one over all of it, and
    another for each time that the step is shortened. With several ranks, or with dropout, one before the step as well.
    Holds a second copy of what is trained meanwhile. A step that moves the other three quarters alone is not seen.

    Args:
        packed: what the gradients are of.
        sampled: number of its first terms, those that a policy sampled; what is imitated stands behind them.
        max_kl: the most nats a token by which the policy may move; 0 bounds nothing, and costs nothing.
        seen: what the pass behind the gradients found at each term.

    Returns:
        The metrics of `Learner.optim_step`; under a bound also `update/kl`, in nats a token, as it was measured last,
        and `update/share`, the part of the step that was taken.
    """
    if max_kl == 0:
        return learner.optim_step()
    # A pass with dropout saw other numbers than those of the policy, and one of several ranks only its own share.
    whole = not learner.drops and not np.isnan(seen.logprobs_S).any()
    before_S = (seen.logprobs_S if whole else learner.logprobs(packed).cpu().numpy()).astype(np.float64)
    of_all = np.arange(packed.term_count)

    def divergence(of: PackedTrees, terms_N: np.ndarray) -> float:
        """Return the mean of k3 over the terms of some trees that were sampled; 0 where there are none."""
        log_ratio_N = (learner.logprobs(of).double().cpu().numpy() - before_S[terms_N])[terms_N < sampled]
        return float(np.mean(np.expm1(log_ratio_N) - log_ratio_N)) if log_ratio_N.size else 0.0

    with learner.reconsidering():
        metrics = learner.optim_step()
        part = divide(packed, _PARTS)[0]
        share, kl = 1.0, 0.0 if part is None else divergence(part.packed, part.terms_N)
        if kl > _NEAR * max_kl:
            kl = divergence(packed, of_all)
        while kl > max_kl and share > _SHORTEST:
            factor = float(np.clip(max_kl / kl, *_FACTORS))
            learner.shorten_step(factor)
            share, kl = share * factor, divergence(packed, of_all)
    return metrics | {"update/kl": kl, "update/share": share}
