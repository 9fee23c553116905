"""What the attacks of this folder share: how many times each is tried, and the table of what held.

`make torture` tries all and prints the table of docs/reliability.md; TORTURE_SIZE sets the share, above 1 too.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from .neighbours import Waits

SIZE = float(os.environ.get("TORTURE_SIZE", "0.05"))


@dataclass
class Row:
    """Count what one attack tried and what held, with the worst figures seen."""

    name: str
    tried: int = 0
    held: int = 0
    slowest_s: float = 0.0
    """The longest try, in seconds."""

    neighbour_s: float | None = None
    """The longest that another client waited for an answer meanwhile, in seconds; None where nobody asked."""

    control_s: float | None = None
    """The longest that it waited for a server with nothing else to do: the machine's part in such waits."""

    peak_mib: float | None = None
    """The most memory that the attacked process held more than before, in MiB; None where it was not watched."""


@dataclass
class Attack:
    """Try hostile things, one `attempt` each; whatever raises in it did not hold.

    A failed try does not end the others: the test fails at its end, with the first three causes.
    """

    row: Row
    causes: list[str] = field(default_factory=list)

    def times(self, whole: int) -> int:
        """Return how many of `whole` tries this run makes, at least one."""
        return max(1, round(whole * SIZE))

    @contextmanager
    def attempt(self, what: object, *, limit_s: float | None = None) -> Iterator[None]:
        """Count one try; it holds if nothing is raised, and if it ends within `limit_s` where that is given."""
        self.row.tried += 1
        began = time.monotonic()
        try:
            yield
            took = time.monotonic() - began
            if limit_s is not None and took > limit_s:
                raise AssertionError(f"took {took:.2f} s, allowed are {limit_s:g}")
            self.row.held += 1
        except Exception:
            self.causes.append(f"{str(what)[:300]}\n{traceback.format_exc(limit=-3)}")
        finally:
            self.row.slowest_s = max(self.row.slowest_s, time.monotonic() - began)

    def neighbour(self, waits: Waits, promised_s: float | None = None) -> None:
        """Keep how long another client waited for its answers, which is to be what is promised.

        Args:
            waits: its longest waits.
            promised_s: what it is promised, where that is not the same as everywhere.

        Raises:
            AssertionError: it waited longer.
        """
        self.row.neighbour_s = max(self.row.neighbour_s or 0.0, waits.neighbour_s)
        self.row.control_s = max(self.row.control_s or 0.0, waits.control_s)
        waits.check(promised_s)

    @contextmanager
    def memory_of(self, pid: int) -> Iterator[None]:
        """Keep by how much the peak memory of process `pid` grows inside; reads Linux's own high-water mark."""
        before = psutil.Process(pid).memory_info().rss
        Path(f"/proc/{pid}/clear_refs").write_text("5")
        yield
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        peak = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
        self.row.peak_mib = max(self.row.peak_mib or 0.0, (peak - before) / 2**20)


@pytest.fixture
def attack(request: pytest.FixtureRequest) -> Iterator[Attack]:
    """Give the attack that the test's name tells; its row goes into the table, and its failures fail the test."""
    attack = Attack(Row(request.node.name.removeprefix("test_").replace("_", " ")))
    yield attack
    request.node.user_properties.append(("torture", asdict(attack.row)))
    assert attack.row.tried, "an attack that tries nothing holds nothing"
    if attack.causes:
        first = "\n".join(attack.causes[:3])
        pytest.fail(f"{len(attack.causes)} of {attack.row.tried} did not hold, first of all:\n{first}", pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table of what was tried, in the form that docs/reliability.md keeps."""
    rows = [
        Row(**value)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "teardown"
        for name, value in report.user_properties
        if name == "torture"
    ]
    if not rows:
        return
    terminalreporter.write_line(
        "| attack | tried | held | slowest, s | neighbour waited, s | control, s | memory, MiB |"
    )
    terminalreporter.write_line("|---|---|---|---|---|---|---|")
    for row in rows:
        waits = ["" if waited is None else f"{waited:.2f}" for waited in (row.neighbour_s, row.control_s)]
        memory = "" if row.peak_mib is None else f"{row.peak_mib:.0f}"
        cells = (row.name, row.tried, row.held, f"{row.slowest_s:.2f}", *waits, memory)
        terminalreporter.write_line("| " + " | ".join(map(str, cells)) + " |")
