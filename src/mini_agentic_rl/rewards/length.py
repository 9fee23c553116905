"""Rewards for brevity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from .base import Reward, RewardError
from .samples import Sample


def length_penalty(n_tokens: int, *, free: int, limit: int) -> float:
    """0 up to `free` tokens, then down in a straight line to -1 at `limit` tokens and beyond.

    The soft over-long punishment of DAPO (arXiv:2503.14476, equation 13), with `limit - free` its buffer.

    Raises:
        ValueError: unless 0 <= free < limit and n_tokens >= 0.
    """
    if not 0 <= free < limit:
        raise ValueError(f"length_penalty needs 0 <= free < limit, not free={free}, limit={limit}")
    if n_tokens < 0:
        raise ValueError(f"n_tokens must be 0 or more, not {n_tokens}")
    return -min(1.0, max(0, n_tokens - free) / (limit - free))


Unit: TypeAlias = Literal["tokens", "characters", "words"]


class LengthPenaltyReward(Reward):
    """`length_penalty` of what the model wrote: 0 up to `free`, down to `-weight` at `limit` and beyond."""

    def __init__(
        self,
        *,
        free: int,
        limit: int,
        unit: Unit = "tokens",
        weight: float = 1.0,
        count: Callable[[str], int] | None = None,
        name: str = "length",
    ) -> None:
        """`count` is the length of a text, in place of `unit`. Tokens are those of the column `completion_ids`, which
        TRL gives.

        Raises:
            ValueError: unless 0 <= free < limit.
        """
        super().__init__(name)
        length_penalty(0, free=free, limit=limit)
        self.free = free
        self.limit = limit
        self.unit = unit
        self.weight = weight
        self._count = count

    def score(self, sample: Sample) -> float | None:
        """The penalty, from `-weight` to 0.

        Raises:
            RewardError: tokens are to be counted, but there are none.
        """
        return self.weight * length_penalty(self._length(sample), free=self.free, limit=self.limit)

    def _length(self, sample: Sample) -> int:
        if self._count is not None:
            return self._count(sample.written)
        if self.unit == "tokens":
            ids = sample.columns.get("completion_ids")
            if ids is None:
                raise RewardError(
                    'the length in tokens needs the column "completion_ids", or `count`, or another `unit` than tokens'
                )
            return len(ids)
        return len(sample.written) if self.unit == "characters" else len(sample.written.split())
