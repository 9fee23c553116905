"""Aggregation of the losses of single tokens to one number: the weight of each term, fixed before a batch is split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

Aggregation = Literal["token", "sequence", "dr_grpo"]


def term_weights(lengths: Sequence[int], aggregation: Aggregation, max_length: int) -> npt.NDArray[np.float32]:
    """Return the weight of each of a trajectory's terms, one entry a trajectory, over the whole batch.

    "token" averages over all tokens of the batch (DAPO; Yu et al. 2025, equation 8), "sequence" over the tokens of a
    trajectory and then over trajectories (GRPO; Shao et al. 2024, equation 3), "dr_grpo" divides by a constant
    (Liu et al. 2025, arXiv:2503.20783, section 3.2).

    Args:
        lengths: sampled tokens of each trajectory that is trained.
        max_length: constant that `dr_grpo` divides by: the most tokens a trajectory may sample.

    Raises:
        ValueError: no trajectory has a token.
    """
    sizes = np.asarray(lengths, np.float64)
    if sizes.size == 0 or sizes.sum() == 0:
        raise ValueError("no trajectory has a sampled token")
    if aggregation == "token":
        weights = np.full(sizes.size, 1 / sizes.sum())
    elif aggregation == "sequence":
        weights = 1 / (sizes.size * np.maximum(sizes, 1))
    else:
        weights = np.full(sizes.size, 1 / (sizes.size * max_length))
    return weights.astype(np.float32)
