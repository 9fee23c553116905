"""Equality of mathematical expressions, in bounded time.

math-verify does the comparing, in a helper process that is started on first use, kept, and killed when a comparison
takes too long: no limit on the text could keep computer algebra from running for ever, and no signal reaches it off
the main thread. Answers are remembered.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable
from fractions import Fraction

from ..processes import DeadlineProcess, EndedError, LateError, NotReadyError

logger = logging.getLogger(__name__)

TIME_LIMIT = 5.0
"""Seconds for one comparison."""
MAX_LENGTH = 300
"""Characters of an expression; a longer one equals nothing."""

_MATHEMATICAL = re.compile(r"[\d\\+*/^=<>]|^\W*[A-Za-z]\W*$|\b(?:pi|sqrt|sin|cos|tan|log|ln|exp|inf)\b")


class TimeBudget:
    """The seconds that the comparisons of one answer may take together: a list may have a hundred slow items."""

    def __init__(self, seconds: float = TIME_LIMIT) -> None:
        self.left = seconds


class SymbolicError(RuntimeError):
    """The helper process cannot be used."""


def equivalent(
    predicted: str, gold: str, near: Callable[[Fraction, Fraction], bool], budget: TimeBudget | None = None
) -> bool:
    """Return True if two expressions (plain text or LaTeX) are equal as mathematics, or have real values that are near
    each other.

    False where either is no expression, is longer than `MAX_LENGTH`, or takes longer than `TIME_LIMIT` (logged), and
    where earlier comparisons have used up the `budget` that they share.

    Raises:
        SymbolicError: the helper process cannot be started, or died of something else than the time limit.
    """
    if max(len(predicted), len(gold)) > MAX_LENGTH or not (
        _MATHEMATICAL.search(predicted) and _MATHEMATICAL.search(gold)
    ):
        return False
    budget = budget or TimeBudget()
    if budget.left <= 0:
        return False
    found, seconds = _remembered(predicted, gold)
    budget.left -= seconds
    return found if isinstance(found, bool) else any(near(Fraction(left), Fraction(right)) for left, right in found)


_helper = DeadlineProcess(f"{__package__}.symbolic_worker")


@functools.lru_cache(maxsize=10_000)
def _remembered(predicted: str, gold: str) -> tuple[bool | list[list[str]], float]:
    """Return whether both are equal, or the values that they may have, as decimals; and the seconds that it took.

    The seconds are those of the helper alone: neither its start nor other threads' turns cost an answer its budget.
    """
    try:
        found, seconds = _helper.ask([predicted, gold], TIME_LIMIT)
        return found, seconds
    except LateError:
        logger.warning("comparing %r with %r took over %.0f s; it counts as wrong", predicted, gold, TIME_LIMIT)
        return False, TIME_LIMIT
    except NotReadyError as error:
        raise SymbolicError(f"expressions cannot be compared by math-verify: {error}") from error
    except EndedError as error:
        raise SymbolicError(f"comparing {predicted!r} with {gold!r}: {error}") from error
