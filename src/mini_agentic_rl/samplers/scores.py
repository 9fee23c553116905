"""The learner's log-probabilities of what a sampler has sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from ..policy import Policy
from ..tokens import CompletionRecord, TokenTree, pack

_MAX_TOKENS: Final = 1024
"""Packed tokens of a pass."""
_HEAD_ROWS: Final = 256
"""Positions whose logits exist at once."""


class Scores(Protocol):
    """Gives the learner's log-probabilities of sampled tokens."""

    async def logprobs(
        self, records: Sequence[CompletionRecord], adapter: str | None, temperature: float | None = None
    ) -> npt.NDArray[np.float32]:
        """Return the log-probabilities of all sampled tokens, one record after the other.

        Args:
            adapter: the one that computes; None is the bare model.
            temperature: in place of that of the records.
        """


class PolicyScores:
    """Scores with a policy, between two steps of its engine.

    Args:
        policy: the weights as they are learnt.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    async def logprobs(
        self, records: Sequence[CompletionRecord], adapter: str | None, temperature: float | None = None
    ) -> npt.NDArray[np.float32]:
        """See `Scores.logprobs`."""
        trees = []
        for record in records:
            tree = TokenTree()
            tree.insert(record if temperature is None else replace(record, temperature=temperature))
            trees.append(tree)
        packed = pack(trees)

        def job() -> npt.NDArray[np.float32]:
            scorer = self._policy.scorer(adapter, max_tokens=_MAX_TOKENS, head_rows=_HEAD_ROWS)
            found: npt.NDArray[np.float32] = scorer.logprobs(packed).float().cpu().numpy()
            return found

        return await self._policy.run_async(job)
