"""Look at the processes that tests have started, directly or not."""

from __future__ import annotations

import time
from collections.abc import Sequence

import psutil

_KEPT = (
    "rewards.symbolic_worker",
    "tools.sql.worker",
    "gaia.file_worker",
    "constraints.trial_worker",
    "resource_tracker",
    "forkserver",
    "rl-keeper",
    "postgres",
    "secantus",
)
"""Helpers and servers that live as long as the test run, or as what has started them."""


def family() -> list[psutil.Process]:
    """Return the processes that this one has started, directly or not, and that still run."""
    return [one for one in psutil.Process().children(recursive=True) if _runs(one) and not _is_kept(one)]


def all_have_ended(processes: Sequence[psutil.Process], timeout: float) -> bool:
    """Return whether all have ended within `timeout` seconds; one that nobody has reaped yet counts as ended."""
    end = time.monotonic() + timeout
    while any(_runs(one) for one in processes):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def _is_kept(process: psutil.Process) -> bool:
    try:
        return any(word in " ".join(process.cmdline()) for word in _KEPT)
    except psutil.Error:
        return False


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
