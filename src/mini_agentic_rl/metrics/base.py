"""The interface of everything that shows or keeps the metrics of a run.

A run is a row of phases ("SFT", "reinforcement learning", "evaluation"); a phase advances through a known or unknown
number of units; at some points a dictionary of numbers is logged under a step. `step` counts what is trained: finished
steps of reinforcement learning, optimizer steps of post-training, rounds of a search. What is measured before the first
one stands at 0. The imitation that goes before reinforcement learning has steps of its own, and names of its own.

Metric names are `family` or `family/detail` (`reward`, `reward/std`, `mismatch/mean_abs`). The console shows one
number of each family in `HEADLINE_FAMILIES`, the report draws one chart per family. A name that ends in `/eval` was
measured on held-out examples; one that begins with `sft/`, or has it inside, belongs to the imitation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from ..redaction import without_secrets


def number(value: float) -> str:
    """Return a number with four digits that count, and the digits of large ones in groups: 0.02537, 21,910."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.4g}"


def percent(share: float, digits: int = 1) -> str:
    """Return a share of one with so many digits after the point: 0.77 is 77.0 %."""
    return f"{100 * share:.{digits}f} %"


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a number with what it counts: 1 step, 2,000 steps.

    Args:
        one: the word for one.
        many: the word for any other number; None puts an s behind that for one.
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def latest(count: int, one: str) -> str:
    """Return the newest of something: the last step, the last 5 steps."""
    return f"the last {one}" if count == 1 else f"the last {counted(count, one)}"


def every(count: int, one: str) -> str:
    """Return all of something, as the beginning of a sentence: all 8 rollouts, the one rollout."""
    return f"the one {one}" if count == 1 else f"all {counted(count, one)}"


def quantity(family: str, value: float | None) -> str:
    """Return the number of a family of metrics, as its column shows it; empty where there is none."""
    if value is None:
        return ""
    if family == "accuracy":
        return percent(value)
    if family == "memory_gib":
        return f"{value:.2f} GiB"
    if family == "tokens_per_second" and value >= 99.5:
        return f"{value:,.0f}"
    return number(value)


def duration(seconds: float) -> str:
    """Return a time: 12.3 s, 4 min 05 s, 2 h 01 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


HEADLINE_FAMILIES = ("reward", "accuracy", "loss", "kl", "entropy", "tokens_per_second", "mismatch", "memory_gib")
"""Families that a person watches, in the order in which they are shown."""
EVAL = "/eval"
"""Suffix of the names of metrics that were measured on held-out examples."""
SFT = "sft/"
"""Prefix of the names of metrics of the imitation, after the adapter's where there are several."""


def headline_name(metrics: Mapping[str, float | None], family: str) -> str | None:
    """Return the name of a family's metric: `family`, else `family/mean`, else its first `family/…`, else the first
    `…/family`, as in `sft/loss`.

    None where the family has no number.
    """
    there = [name for name, value in metrics.items() if value is not None]
    first = [name for name in (family, f"{family}/mean") if name in there]
    inner = [name for name in there if name.startswith(f"{family}/")]
    outer = [name for name in there if name.endswith(f"/{family}")]
    return next(iter((*first, *inner, *outer)), None)


def headline(metrics: Mapping[str, float | None], family: str) -> float | None:
    """Return the number of the metric that stands for a family; None where it has none."""
    name = headline_name(metrics, family)
    return None if name is None else metrics[name]


def held_out(metrics: Mapping[str, float]) -> dict[str, float] | None:
    """Return numbers that were all measured on held-out examples, under their plain names; None if they were not."""
    if not metrics or not all(name.endswith(EVAL) for name in metrics):
        return None
    return {name.removesuffix(EVAL): value for name, value in metrics.items()}


def step_label(metrics: Mapping[str, float], step: int) -> str:
    """Return how a person is told of a row's step: the number, and which steps it counts or what was measured."""
    if held_out(metrics) is not None:
        return f"{step}, held out"
    return f"{step}, SFT" if metrics and all(SFT in name for name in metrics) else str(step)


class MetricsLogger:
    """Override what you need; what is left alone does nothing. Also a context manager that closes itself."""

    def phase(self, name: str, total: int | None = None) -> None:
        """A new phase begins, ending the one before it.

        Args:
            name: What to call it, e.g. "evaluation before".
            total: Number of its units (steps, problems); None if that is unknown.
        """

    def advance(self, n: int = 1) -> None:
        """`n` more units of the current phase are done."""

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Record numbers under a step (0 or more), which one name of a metric never counts backwards."""

    def note(self, message: str) -> None:
        """Tell something that is not a number, in one line."""

    def table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Record a table, such as conversations: each row has the same columns, of texts and numbers."""

    def artifact(self, name: str, files: Sequence[Path]) -> None:
        """Keep files that the run has made, such as those of its adapter."""

    def close(self) -> None:
        """Flush and release everything. Closing twice is allowed."""

    def __enter__(self) -> MetricsLogger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class MultiLogger(MetricsLogger):
    """Passes everything on to several loggers, in order."""

    def __init__(self, loggers: Sequence[MetricsLogger]) -> None:
        self.loggers = tuple(loggers)

    def phase(self, name: str, total: int | None = None) -> None:
        for logger in self.loggers:
            logger.phase(name, total)

    def advance(self, n: int = 1) -> None:
        for logger in self.loggers:
            logger.advance(n)

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        for logger in self.loggers:
            logger.log(metrics, step=step)

    def note(self, message: str) -> None:
        for logger in self.loggers:
            logger.note(message)

    def table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        for logger in self.loggers:
            logger.table(name, rows)

    def artifact(self, name: str, files: Sequence[Path]) -> None:
        for logger in self.loggers:
            logger.artifact(name, files)

    def close(self) -> None:
        """Closes every logger, then raises the first error that one of them raised."""
        errors: list[Exception] = []
        for logger in self.loggers:
            try:
                logger.close()
            except Exception as error:  # the others still have to be closed
                errors.append(error)
        if errors:
            raise errors[0]


logger = logging.getLogger(__name__)

_FAILURES: Final = 5


class GuardedLogger(MetricsLogger):
    """Passes everything on to one logger, and keeps what that raises from the run.

    The first failure is told. After five in a row the logger is left alone, so that one whose service is away cannot
    hold up every step.

    Args:
        name: of the logger, for the log.
        inner: the logger.
    """

    def __init__(self, name: str, inner: MetricsLogger) -> None:
        self.name = name
        self.inner = inner
        self._in_a_row = 0
        self._told = False

    def phase(self, name: str, total: int | None = None) -> None:
        self._try(lambda: self.inner.phase(name, total))

    def advance(self, n: int = 1) -> None:
        self._try(lambda: self.inner.advance(n))

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        self._try(lambda: self.inner.log(metrics, step=step))

    def note(self, message: str) -> None:
        self._try(lambda: self.inner.note(message))

    def table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self._try(lambda: self.inner.table(name, rows))

    def artifact(self, name: str, files: Sequence[Path]) -> None:
        self._try(lambda: self.inner.artifact(name, files))

    def close(self) -> None:
        self._try(self.inner.close, last=True)

    def _try(self, call: Callable[[], None], *, last: bool = False) -> None:
        if self._in_a_row >= _FAILURES and not last:
            return
        try:
            call()
        except Exception as error:  # of a foreign package, and of the network behind it
            self._in_a_row += 1
            reason = without_secrets(next(iter(str(error).strip().splitlines()), type(error).__name__))
            if not self._told:
                self._told = True
                logger.warning("the %s logger fails (%s); the run goes on without what it missed", self.name, reason)
            elif self._in_a_row == _FAILURES:
                logger.warning(
                    "the %s logger failed %d times in a row and is left alone (%s)", self.name, _FAILURES, reason
                )
        else:
            self._in_a_row = 0
