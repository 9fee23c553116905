"""`MetricsLogger`, the interface of everything that shows or stores the metrics of a run.

A run is a sequence of phases ("SFT", "reinforcement learning", "evaluation"); a phase advances through a known or
unknown number of units; metrics are logged under a step. `step` counts finished steps of reinforcement learning,
optimizer steps of post-training, or rounds of a search; measurements before the first step have step 0. The warm-up
before reinforcement learning has its own steps and metric names.

Metric names are `family` or `family/detail` (`reward`, `reward/std`, `mismatch/mean_abs`). The console shows one metric
of each family in `HEADLINE_FAMILIES`, the report draws one chart per family. Names that end in `/eval` were measured on
held-out examples; names that begin with `sft/`, or contain it, belong to the warm-up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from ..redaction import without_secrets

logger = logging.getLogger(__name__)

_FAILURES: Final = 5
"""Failures in a row after which a logger is no longer called."""


def number(value: float) -> str:
    """Return a number with four significant digits, and large ones with thousands separators: 0.02537, 21,910."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.4g}"


def percent(share: float, digits: int = 1) -> str:
    """Return a share as a percentage with this number of decimals: 0.77 is 77.0 %."""
    return f"{100 * share:.{digits}f} %"


def counted(count: int, noun: str, many: str | None = None) -> str:
    """Return a number with a noun: 1 step, 2,000 steps.

    Args:
        noun: the singular.
        many: the plural; None appends an s to the singular.
    """
    return f"{count:,} {noun if count == 1 else many or f'{noun}s'}"


def latest(count: int, noun: str) -> str:
    """Return a phrase for the newest items: the last step, the last 5 steps."""
    return f"the last {noun}" if count == 1 else f"the last {counted(count, noun)}"


def every(count: int, noun: str) -> str:
    """Return a phrase for all items: all 8 rollouts, the one rollout."""
    return f"the one {noun}" if count == 1 else f"all {counted(count, noun)}"


def quantity(family: str, value: float | None) -> str:
    """Return the metric of a family as its column shows it; empty for None."""
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
    """Return seconds as text: 12.3 s, 4 min 05 s, 2 h 01 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


HEADLINE_FAMILIES = ("reward", "accuracy", "loss", "kl", "entropy", "tokens_per_second", "mismatch", "memory_gib")
"""Families that the console shows, in order."""
EVAL = "/eval"
"""Suffix of metrics that were measured on held-out examples."""
SFT = "sft/"
"""Prefix of metrics of the warm-up, after the name of the adapter if there are several."""


_OTHER_DISTANCES = {"mismatch", "staleness", "teacher", "update"}
"""Metrics whose `…/kl` is not the distance from the reference, which `kl` is."""


def headline_name(metrics: Mapping[str, float | None], family: str) -> str | None:
    """Return the name of a family's headline metric: `family`, else `family/mean`, else its first `family/…`, else the
    first `…/family`, as in `sft/loss`; None if the family has no value."""
    names = [name for name, value in metrics.items() if value is not None]
    first = [name for name in (family, f"{family}/mean") if name in names]
    inner = [name for name in names if name.startswith(f"{family}/")]
    outer = [name for name in names if name.endswith(f"/{family}") and name.split("/")[-2] not in _OTHER_DISTANCES]
    return next(iter((*first, *inner, *outer)), None)


def headline(metrics: Mapping[str, float | None], family: str) -> float | None:
    """Return the value of a family's headline metric; None if it has none."""
    name = headline_name(metrics, family)
    return None if name is None else metrics[name]


def held_out(metrics: Mapping[str, float]) -> dict[str, float] | None:
    """Return metrics without the suffix `/eval`; None unless all were measured on held-out examples."""
    if not metrics or not all(name.endswith(EVAL) for name in metrics):
        return None
    return {name.removesuffix(EVAL): value for name, value in metrics.items()}


def step_label(metrics: Mapping[str, float], step: int) -> str:
    """Return the label of a row: its step, and whether it is a held-out measurement or a step of the warm-up."""
    if held_out(metrics) is not None:
        return f"{step}, held out"
    return f"{step}, SFT" if metrics and all(SFT in name for name in metrics) else str(step)


class MetricsLogger:
    """Base of loggers, whose methods do nothing: override those that you need. A context manager that closes itself."""

    def phase(self, name: str, total: int | None = None) -> None:
        """Begin a phase, which ends the previous one.

        Args:
            name: name of the phase, e.g. "evaluation before".
            total: number of its units (steps, problems); None if unknown.
        """

    def advance(self, n: int = 1) -> None:
        """Count `n` more finished units of the current phase."""

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Record metrics under a step; the steps of a metric never decrease."""

    def note(self, message: str) -> None:
        """Show a message of one line."""

    def table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Record a table, such as conversations: rows with the same columns, strings and numbers."""

    def artifact(self, name: str, files: Sequence[Path]) -> None:
        """Store files of the run, such as those of its adapter."""

    def close(self) -> None:
        """Flush and release everything. Closing twice is allowed."""

    def __enter__(self) -> MetricsLogger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class MultiLogger(MetricsLogger):
    """Forwards everything to several loggers, in order."""

    def __init__(self, loggers: Sequence[MetricsLogger]) -> None:
        self.loggers = tuple(loggers)

    def phase(self, name: str, total: int | None = None) -> None:
        self._forward(lambda inner: inner.phase(name, total))

    def advance(self, n: int = 1) -> None:
        self._forward(lambda inner: inner.advance(n))

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        self._forward(lambda inner: inner.log(metrics, step=step))

    def note(self, message: str) -> None:
        self._forward(lambda inner: inner.note(message))

    def table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self._forward(lambda inner: inner.table(name, rows))

    def artifact(self, name: str, files: Sequence[Path]) -> None:
        self._forward(lambda inner: inner.artifact(name, files))

    def close(self) -> None:
        """Close every logger, in order."""
        with ExitStack() as stack:  # an error of one logger leaves none of the others open
            for inner in reversed(self.loggers):
                stack.callback(inner.close)

    def _forward(self, call: Callable[[MetricsLogger], None]) -> None:
        for inner in self.loggers:
            call(inner)


class GuardedLogger(MultiLogger):
    """Forwards everything to one logger and catches its errors, so that they do not stop the run.

    The first failure is logged. After five in a row the logger is no longer called, so that an unreachable service
    cannot delay every step.

    Args:
        name: name of the logger, for log lines.
        inner: the logger.
    """

    def __init__(self, name: str, inner: MetricsLogger) -> None:
        super().__init__([inner])
        self.name = name
        self._failures_in_a_row = 0
        self._has_warned = False

    def close(self) -> None:
        self._failures_in_a_row = 0
        self._forward(lambda inner: inner.close())

    def _forward(self, call: Callable[[MetricsLogger], None]) -> None:
        if self._failures_in_a_row >= _FAILURES:
            return
        try:
            call(self.loggers[0])
            self._failures_in_a_row = 0
        except Exception as error:  # another package and its network may raise anything
            self._failures_in_a_row += 1
            reason = without_secrets(next(iter(str(error).strip().splitlines()), type(error).__name__))
            if not self._has_warned:
                self._has_warned = True
                logger.warning("the %s logger fails (%s); the run goes on without what it missed", self.name, reason)
            elif self._failures_in_a_row == _FAILURES:
                logger.warning(
                    "the %s logger failed %d times in a row and is left alone (%s)", self.name, _FAILURES, reason
                )
