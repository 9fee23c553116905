"""The base of all teachers: log-probabilities in the states that the policy came to, whoever tells them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ...losses.base import Floats, Ints
    from ..batch import TrainingBatch


class Teacher(Protocol):
    """Scores what the policy sampled. Runs on the torch thread."""

    def logprobs(self, batch: TrainingBatch) -> Floats:
        """Return the log-probability [S] of each sampled token; at terms that are imitated any finite number.

        Raises:
            UserError: it cannot be had.
        """

    def likeliest(self, batch: TrainingBatch, count: int) -> tuple[Ints | None, npt.NDArray[np.float32]]:
        """Return the `count` likeliest tokens [S, K] in each state, 0 for the whole vocabulary (None then), and their
        log-probabilities [S, K].

        Raises:
            UserError: they cannot be had.
        """
