"""The protocol of a reward function, and the base of those here.

A reward function is called as TRL calls one: `fn(completions=[…], prompts=[…], ground_truth=[…], …)`, a list for each
column, and returns a number for each completion, or None where there is no reward. None is not 0: a sample without a
reward takes no part in training. What went wrong is logged, and counted by reason in `errors`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ..errors import UserError
from .samples import Sample, samples_of

logger = logging.getLogger(__name__)

RewardFunction: TypeAlias = Callable[..., "list[float | None]"]
"""`fn(completions=…, prompts=…, **columns)`; completions are texts or lists of messages."""

_COUNTING = threading.Lock()


class RewardError(UserError, ValueError):
    """A reward function that cannot work as it was asked to; the message says what is missing."""


class Reward:
    """Base of the reward functions: override `score`, or `score_all` where samples are scored together.

    Whatever `score` raises is that sample's error, and the others are scored all the same; a `RewardError` is raised
    to the caller, since it would befall every sample. What is raised where samples are scored together is the error of
    them all.
    """

    def __init__(self, name: str) -> None:
        """`name` is what logs and metrics call it."""
        self.name = name
        self.errors: Counter[str] = Counter()
        """How many samples got no reward, by reason."""

    @property
    def __name__(self) -> str:
        """The name, where TRL looks for it."""
        return self.name

    def __call__(
        self, completions: Sequence[Any], prompts: Sequence[Any] | None = None, **columns: Any
    ) -> list[float | None]:
        """A reward for each completion, or None.

        Raises:
            RewardError: the rows lack something that every reward needs.
        """
        try:
            scores = self.score_columns(completions, prompts, columns)
        except RewardError:
            raise
        except Exception as error:  # a reward that fails must not end a training
            self.failed(type(error).__name__, _first_line(error), count=len(completions))
            return [None] * len(completions)
        return [self._checked(score) for score in scores]

    async def in_thread(
        self, completions: Sequence[Any], prompts: Sequence[Any] | None = None, **columns: Any
    ) -> list[float | None]:
        """The same from an event loop, which goes on meanwhile."""
        return await asyncio.to_thread(self, completions, prompts, **columns)

    def score_columns(
        self, completions: Sequence[Any], prompts: Sequence[Any] | None, columns: Mapping[str, Any]
    ) -> Sequence[float | None]:
        """The scores of what the caller gave, as it gave it; by default of the samples that it makes."""
        return self.score_all(samples_of(completions, prompts, columns))

    def score_all(self, samples: Sequence[Sample]) -> Sequence[float | None]:
        """The scores of all samples, one by one unless overridden."""
        return [self._score_safely(sample) for sample in samples]

    def score(self, sample: Sample) -> float | None:
        """The score of one sample; None where there is none and nothing went wrong."""
        raise NotImplementedError

    def failed(self, reason: str, detail: object = "", *, count: int = 1) -> None:
        """Count samples that got no reward. Every first of a reason is a warning in the log."""
        with _COUNTING:
            known = self.errors[reason]
            self.errors[reason] += count
        level = logging.DEBUG if known else logging.WARNING
        logger.log(
            level, "reward %s: no reward for a sample: %s%s", self.name, reason, f" ({detail})" if detail else ""
        )

    def _score_safely(self, sample: Sample) -> float | None:
        try:
            return self.score(sample)
        except RewardError:
            raise
        except Exception as error:  # one sample must not cost the others their rewards
            self.failed(type(error).__name__, _first_line(error))
            return None

    def _checked(self, score: float | None) -> float | None:
        if score is None:
            return None
        value = float(score)
        if not math.isfinite(value):
            self.failed("the score is not finite", value)
            return None
        return value


def name_of(function: Callable[..., Any]) -> str:
    """What to call a reward function."""
    name = getattr(function, "__name__", type(function).__name__)
    return str(name)


def column(sample: Sample, name: str) -> Any:
    """A column of the sample's row.

    Raises:
        RewardError: the rows have no such column.
    """
    if name not in sample.columns:
        known = ", ".join(sorted(sample.columns)) or "none"
        raise RewardError(f"the reward needs the column {name!r}; the columns are: {known}")
    return sample.columns[name]


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]
