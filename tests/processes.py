"""Look at the processes that tests have started, directly or not."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

import mini_agentic_rl

_KEPT = ("trial_worker", "resource_tracker", "forkserver", "rl-watchdog", "postgres", "secantus")
"""Helpers and servers that live as long as the test run, or as what has started them."""


@functools.cache
def _kept() -> tuple[str, ...]:
    """Return `_KEPT` and every module of the package that a `DeadlineProcess` runs: those wait for their next question.

    They are read from the source, since which of them a process has started depends on the tests it happened to run.
    """
    called = re.compile(r'f"\{__package__\}\.(\w*worker)"')
    package = Path(mini_agentic_rl.__file__).parent
    found = {
        ".".join((*file.relative_to(package.parent).parent.parts, name))
        for file in package.rglob("*.py")
        for name in called.findall(file.read_text(encoding="utf-8"))
        if "DeadlineProcess" in file.read_text(encoding="utf-8")
    }
    return (*_KEPT, *sorted(found))


def family() -> list[str]:
    """Return the command lines of the processes that this one has started, directly or not, and that still run."""
    children = [one for one in psutil.Process().children(recursive=True) if _runs(one)]
    return [line for line in map(_command_line, children) if line and not any(word in line for word in _kept())]


def all_have_ended(processes: Sequence[psutil.Process], timeout: float) -> bool:
    """Return whether all have ended within `timeout` seconds; one that nobody has reaped yet counts as ended."""
    end = time.monotonic() + timeout
    while any(_runs(one) for one in processes):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def _command_line(process: psutil.Process) -> str:
    """Return the words of a process's command; nothing for one that has ended meanwhile."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
