"""Demonstrations in each step of reinforcement learning: supervised learning mixed into it, so that what was imitated
before is not lost, and so that tasks that are never solved teach something.

    L = L_policy + sft_coef * mean over the demonstrations' tokens of -log pi(token)

It is the combination of the two losses in one step of CHORD (Zhang et al. 2025, arXiv:2508.11408), with a coefficient
that stays as it is and without its weights of single tokens. The conversations are rendered as the warm-up's are, and
share with the rollouts' tree what they begin with alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...gateway import ChatRenderer
from ...tokens import CompletionRecord
from ...types import Dataset
from ..seeds import derive_seed
from .batch import Imitated

if TYPE_CHECKING:
    from ..loop.warm_start import WarmStart


class DemonstrationSource:
    """Conversations about training tasks, drawn anew for each step."""

    def __init__(
        self,
        warm_start: WarmStart,
        dataset: Dataset[Mapping[str, Any]],
        renderer: ChatRenderer,
        *,
        count: int,
        seed: int,
    ) -> None:
        """`count` conversations are drawn for a step."""
        self._warm_start = warm_start
        self._dataset = dataset
        self._renderer = renderer
        self._count = count
        self._seed = seed

    def draw(self, step: int) -> list[CompletionRecord]:
        """Return the conversations of an optimizer step, a record per turn of the assistant; `step` says which are
        drawn, and nothing else does."""
        size = len(self._dataset)
        drawn = np.random.default_rng(derive_seed(self._seed, "demonstrations", step)).choice(
            size, min(self._count, size), replace=False
        )
        return [
            record
            for row in drawn
            for record in self._renderer.conversation_to_records(
                self._warm_start.demonstration(self._dataset[int(row)]), self._warm_start.tools
            )
        ]


def demonstrated(records: Sequence[CompletionRecord], coef: float) -> list[Imitated]:
    """Return the records weighed for the loss: the mean over all of their tokens, times `coef`."""
    size = sum(record.trained_tokens for record in records)
    return [Imitated(record, coef / size, "sft") for record in records]
