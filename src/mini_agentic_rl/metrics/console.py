"""Show a running run on the console: progress, remaining time, and the latest headline metrics.

A terminal shows a live view; a file, a pipe or CI gets plain lines, one for each logged step, each phase and, within a
long phase, each half minute. Findings of the doctor are shown below the table, or as one line the first time. The
output goes to standard error: standard output is for results.
"""

from __future__ import annotations

import functools
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from ..visible_text import VisibleConsole
from .base import HEADLINE_FAMILIES, MetricsLogger, duration, headline, headline_name, held_out, quantity, step_label
from .doctor import RunWatch
from .view import Finding

_WIDTH_WITHOUT_TERMINAL = 200
_ESTIMATE_FROM = 0.1
"""Finished share of a phase from which its remaining time is estimated."""
_SHOWN_STEPS = 8
_SHOWN_PHASES = 6
_SECONDS_BETWEEN_LINES = 30.0
_SHORT_SECONDS = 0.05
"""Seconds below which the end of a phase is not worth a line, as of one that is read from a file."""
_TITLES = {
    "accuracy/tokens": "token accuracy",
    "memory_gib": "memory",
    "reward/margin": "margin",
    "tokens_per_second": "tokens/s",
}
"""Labels of metrics and families that differ from the name of the family."""
_RATE = "tokens_per_second"


@functools.cache
def shared_console() -> Console:
    """Return the console of this process on standard error.

    Log output has to use it too, `setup_logging(console=shared_console())`: lines of another console would break the
    live view.
    """
    return VisibleConsole(stderr=True, width=None if sys.stderr.isatty() else _WIDTH_WITHOUT_TERMINAL)


class ConsoleLogger(MetricsLogger):
    """Shows a live view on a terminal, plain lines elsewhere, from the first call until `close`.

    A pickled logger writes to the standard error of the process that loads it.

    Args:
        console: console to write to; `shared_console()` if None.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or shared_console()
        self._shown: _LiveView | _PlainLines | None = None
        self._phase = ""
        self._doctor = RunWatch()

    def phase(self, name: str, total: int | None = None) -> None:
        self._phase = name
        self._view().phase(name, total)

    def advance(self, n: int = 1) -> None:
        self._view().advance(n)

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        self._view().log(metrics, step)
        findings = self._doctor.add({"phase": self._phase, "step": step, **metrics})
        if findings is not None:
            self._view().findings(findings)

    def note(self, message: str) -> None:
        (self._shown or _PlainLines(self.console)).note(message)  # before the first phase and after the end plainly

    def close(self) -> None:
        if self._shown is not None:
            self._shown.close()
            self._shown = None

    def __reduce__(self) -> tuple[type[ConsoleLogger], tuple[()]]:
        return ConsoleLogger, ()

    def _view(self) -> _LiveView | _PlainLines:
        if self._shown is None:
            self._shown = _LiveView(self.console) if self.console.is_terminal else _PlainLines(self.console)
        return self._shown


class _LiveView:
    """Progress bars above a table of the last steps."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self._phases: deque[TaskID] = deque()
        self._steps: deque[tuple[str, dict[str, float]]] = deque(maxlen=_SHOWN_STEPS)
        self._findings: Sequence[Finding] = ()
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=4)
        self._live.start()

    def phase(self, name: str, total: int | None) -> None:
        self._end_phase()
        self._phases.append(self._progress.add_task(name, total=total))
        while len(self._phases) > _SHOWN_PHASES:
            self._progress.remove_task(self._phases.popleft())

    def advance(self, n: int) -> None:
        if self._phases:
            self._progress.advance(self._phases[-1], n)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        row = held_out(metrics) or dict(metrics)
        if any(headline(row, family) is not None for family in HEADLINE_FAMILIES):
            self._steps.append((step_label(metrics, step), row))

    def findings(self, findings: Sequence[Finding]) -> None:
        self._findings = findings

    def note(self, message: str) -> None:
        self._console.print(message, markup=False, highlight=False)

    def close(self) -> None:
        self._end_phase()
        self._live.stop()

    def _end_phase(self) -> None:
        if self._phases:
            task = next(task for task in self._progress.tasks if task.id == self._phases[-1])
            if task.total is None:
                self._progress.update(task.id, total=task.completed or 1, completed=task.completed or 1)
            self._progress.stop_task(task.id)

    def _render(self) -> RenderableType:
        steps = list(self._steps)
        if not steps:
            return self._progress
        table = steps_table(steps)
        return Group(self._progress, table, *(finding_text(finding) for finding in self._findings))


class _PlainLines:
    """One line for each event."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._name: str | None = None
        self._total: int | None = None
        self._done = 0
        self._start = self._last_line = time.monotonic()
        self._shown_findings: set[tuple[str, str]] = set()

    def phase(self, name: str, total: int | None) -> None:
        self._end_phase()
        self._name, self._total, self._done = name, total, 0
        self._start = self._last_line = time.monotonic()
        self.note(f"{name}: started" + (f", {total} to do" if total is not None else ""))

    def advance(self, n: int) -> None:
        self._done += n
        now = time.monotonic()
        if now - self._last_line >= _SECONDS_BETWEEN_LINES:
            self.note(self._progress(now))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        row = held_out(metrics) or metrics
        parts = [f"step {step_label(metrics, step)}"]
        for family in HEADLINE_FAMILIES:
            value = headline(row, family)
            if value is not None:
                words = [_title(row, family), quantity(family, value)]
                parts.append(" ".join(reversed(words) if family == _RATE else words))
        if len(parts) > 1:  # a probe has no headline number; a note has its figures
            self.note("  ".join(parts))

    def findings(self, findings: Sequence[Finding]) -> None:
        for finding in findings:
            key = (finding.adapter, finding.rule)
            if key not in self._shown_findings:
                self._shown_findings.add(key)
                self.note(f"doctor: {finding.head}: {finding.body}")

    def note(self, message: str) -> None:
        self._last_line = time.monotonic()
        self._console.print(message, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._end_phase()

    def _end_phase(self) -> None:
        seconds = time.monotonic() - self._start
        if self._name is not None and (self._done or seconds >= _SHORT_SECONDS):
            done = f"{self._done} done in " if self._done else "done in "
            self.note(f"{self._name}: {done}{duration(seconds)}")
        self._name = None

    def _progress(self, now: float) -> str:
        if not self._total:
            return f"{self._name}: {self._done} done"
        so_far = f"{self._name}: {self._done} of {self._total}"
        if not _ESTIMATE_FROM * self._total <= self._done < self._total:
            return so_far
        left = (now - self._start) / self._done * (self._total - self._done)
        return f"{so_far}, about {duration(max(left, 0.0))} left"


def steps_table(steps: Sequence[tuple[str, Mapping[str, float]]]) -> Table:
    """Return a table of steps, given as label and metrics, with a column for each headline family."""
    titles = {
        family: _title(row, family)
        for family in HEADLINE_FAMILIES
        for _, row in steps
        if headline_name(row, family) is not None
    }
    table = Table(box=None, pad_edge=False)
    table.add_column("step", justify="right" if all(step.isdecimal() for step, _ in steps) else "left")
    for title in titles.values():
        table.add_column(title, justify="right")
    for step, row in steps:
        table.add_row(step, *(quantity(family, headline(row, family)) for family in titles))
    return table


def finding_text(finding: Finding, spelled: Callable[[str], str] = str) -> Text:
    """Return a finding of the doctor as coloured text: a fault in red, a warning in yellow.

    Args:
        spelled: replaces the names of settings in the advice, as by command-line options.
    """
    colour = "red" if finding.level == "fault" else "yellow"
    return Text.assemble((f"{finding.head}: ", f"bold {colour}"), finding.seen, ". ", f"{spelled(finding.advice)}.")


def _title(row: Mapping[str, float], family: str) -> str:
    """Return the label of a family's headline metric in this row."""
    return _TITLES.get(headline_name(row, family) or family, _TITLES.get(family, family))
