"""The attempts of an attack, their bounds, and the table of the results.

`make torture` makes all attempts and prints the rows of docs/attacks.csv; TORTURE_SIZE sets the share, above 1 too.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
import pytest

if TYPE_CHECKING:
    from .neighbours import Neighbour

SIZE: Final = float(os.environ.get("TORTURE_SIZE", "0.05"))
PROMISED_S: Final = 0.25
"""Longest wait of a neighbour, in seconds, as docs/reliability.md promises."""
LONGEST_WAIT_S: Final = 2.5
"""Ten times that: allowed where a part of the suite runs, on a machine that the rest keeps busy."""
_CONTROLS: Final = 3.0
"""A longer wait counts as the machine's where the control waited a third of it: several threads have to get a
processor between a request and its answer, and each waits."""
MOST_MIB: Final = 1024.0
"""MiB by which an attack may raise the memory of the attacked process."""
_COLUMNS = ("attack", "tried", "held", "slowest, s", "neighbour waited, s", "control, s", "memory, MiB")


@dataclass
class Attack:
    """Count attempts and those that held, with the worst figures.

    A failed attempt does not end the others: the test fails at its end, with the first three causes.
    """

    name: str
    tried: int = 0
    held: int = 0
    slowest_s: float = 0.0
    neighbour_s: float | None = None
    """Longest wait of another client, in seconds; None without one."""
    control_s: float | None = None
    """Longest wait for the idle server in that time, in seconds."""
    peak_mib: float | None = None
    """Largest growth of the attacked process, in MiB; None where it was not measured."""
    causes: list[str] = field(default_factory=list)

    def times(self, whole: int) -> int:
        """Return how many of `whole` attempts this run makes, at least one."""
        return max(1, round(whole * SIZE))

    @contextmanager
    def attempt(
        self, what: object, *, limit_s: float | None = None, neighbour: Neighbour | None = None
    ) -> Iterator[None]:
        """Count an attempt. It holds if nothing is raised, in `limit_s` seconds, and the neighbour is answered."""
        self.tried += 1
        if neighbour is not None:
            neighbour.forget()
        began = time.monotonic()
        try:
            yield
            if neighbour is not None:
                self.check_waits(neighbour)
            took_s = time.monotonic() - began
            assert limit_s is None or took_s <= limit_s, f"took {took_s:.2f} s, allowed are {limit_s:g}"
            self.held += 1
        except Exception:
            self.causes.append(f"{str(what)[:300]}\n{traceback.format_exc(limit=-3)}")
        finally:
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def check_waits(self, neighbour: Neighbour) -> None:
        """Record the longest waits of a neighbour, and check that they are as short as promised."""
        waited_s, control_s = neighbour.longest()
        self.neighbour_s = max(self.neighbour_s or 0.0, waited_s)
        self.control_s = max(self.control_s or 0.0, control_s)
        allowed_s = max(PROMISED_S, LONGEST_WAIT_S if SIZE < 1 else _CONTROLS * control_s)
        assert waited_s <= allowed_s, f"a neighbour waited {waited_s:.2f} s, and the control {control_s:.2f} s"

    @contextmanager
    def memory_of(self, pid: int) -> Iterator[None]:
        """Record and bound by how much the peak memory of a process grows; reads Linux's high-water mark."""
        before = psutil.Process(pid).memory_info().rss
        Path(f"/proc/{pid}/clear_refs").write_text("5")
        yield
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        peak = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
        grown_mib = (peak - before) / 2**20
        self.peak_mib = max(self.peak_mib or 0.0, grown_mib)
        assert grown_mib < MOST_MIB, f"the attacked process grew by {grown_mib:.0f} MiB"

    def cells(self) -> list[str]:
        """Return the row of the table."""
        waits = ["" if waited is None else f"{waited:.2f}" for waited in (self.neighbour_s, self.control_s)]
        memory = "" if self.peak_mib is None else f"{self.peak_mib:.0f}"
        return [self.name, str(self.tried), str(self.held), f"{self.slowest_s:.2f}", *waits, memory]


@pytest.fixture
def attack(request: pytest.FixtureRequest) -> Iterator[Attack]:
    """Return the attack that the test is named after; its failed attempts fail the test."""
    attack = Attack(request.node.name.removeprefix("test_").replace("_", " "))
    yield attack
    request.node.user_properties.append(("torture", attack.cells()))
    assert attack.tried, "an attack that tries nothing holds nothing"
    if attack.causes:
        first = "\n".join(attack.causes[:3])
        pytest.fail(f"{len(attack.causes)} of {attack.tried} did not hold, first of all:\n{first}", pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table of all attacks."""
    rows = [
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "teardown"
        for name, value in report.user_properties
        if name == "torture"
    ]
    if rows:
        for cells in (_COLUMNS, ["---"] * len(_COLUMNS), *rows):
            terminalreporter.write_line("| " + " | ".join(cells) + " |")
