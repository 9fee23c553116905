"""`clip`: the clipped ratio of each token (PPO; Schulman et al. 2017, arXiv:1707.06347, equation 7; GRPO; Shao et al.
2024, arXiv:2402.03300, equation 3).

    J = min(w A, clip(w, low, high) A)

DAPO (Yu et al. 2025, arXiv:2503.14476, equation 8) is the same with high - 1 above 1 - low, so that unlikely tokens can
rise.
"""

from __future__ import annotations

from .base import LossTerms, PolicyLoss, Surrogate, clipped


def clipped_ratio(terms: LossTerms) -> Surrogate:
    """Return min(w A, clip(w, low, high) A), with the ratio w of each token."""
    return clipped(terms.log_ratio_S.exp(), terms)


LOSS = PolicyLoss(clipped_ratio)
