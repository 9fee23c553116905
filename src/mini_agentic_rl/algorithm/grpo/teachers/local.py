"""A teacher whose weights are here: the bare model, an adapter of the same model, or another model.

It computes the packed tree that the policy learns from, so what rollouts share it computes once. On-policy
distillation (Agarwal et al. 2024, arXiv:2306.13649; Gu et al. 2024, arXiv:2306.08543) wants it in the states that the
policy itself comes to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ....policy import Scorer
from ...losses.base import Floats, Ints

if TYPE_CHECKING:
    from ..batch import TrainingBatch


class LocalTeacher:
    """Weights that a `Scorer` computes with."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer

    def logprobs(self, batch: TrainingBatch) -> Floats:
        found: Floats = self._scorer.logprobs(batch.packed).double().cpu().numpy()
        return found

    def likeliest(self, batch: TrainingBatch, count: int) -> tuple[Ints | None, npt.NDArray[np.float32]]:
        found = self._scorer.likeliest(batch.packed, count)
        return None if found.tokens_SK is None else found.tokens_SK.numpy(), found.logprobs_SK.numpy()
