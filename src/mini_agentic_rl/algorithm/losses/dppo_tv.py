"""`dppo_tv`: a trust region of the divergence, and not of the ratio, in total variation (DPPO; Qi et al. 2026,
arXiv:2602.04879, equations 11 to 13).

    J = M w A
    M = 0 where A > 0 and w > 1, or A < 0 and w < 1, and D > delta; elsewhere 1
    D = |pi(token) - pi_old(token)|

D is the divergence of the two distributions after all tokens but the sampled one were put together (binary): a lower
bound of the total variation between them. A ratio says little about it: it is far from 1 for a rare token long before
anything has changed, and near 1 for a likely one after much has. What brings the policies nearer to each other is never
masked. pi_old is the sampler's, unless an importance correction takes the ratio to the learner's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import LossTerms, PolicyLoss, Surrogate

if TYPE_CHECKING:
    from torch import Tensor


def within_divergence(terms: LossTerms, divergence_S: Tensor) -> Surrogate:
    """Return w A where the step does not lead away from the old policy beyond `bounds.divergence`, and 0 there."""
    ratio_S = terms.log_ratio_S.exp()
    leads_away_S = (ratio_S.detach() - 1) * terms.advantages_S > 0
    masked_S = leads_away_S & (divergence_S > terms.bounds.divergence)
    return Surrogate((ratio_S * terms.advantages_S).masked_fill(masked_S, 0.0), masked_S)


def total_variation(terms: LossTerms) -> Surrogate:
    """Return M w A with the binary total variation as D."""
    difference_S = terms.logprobs_S.detach().exp() - terms.old_logprobs_S.exp()
    return within_divergence(terms, difference_S.abs())


LOSS = PolicyLoss(total_variation)
