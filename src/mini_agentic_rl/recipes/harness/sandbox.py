"""Sandboxes: where a command runs, what it may take, and what came of it.

A `Sandbox` runs one `Confined` command to its end and returns the `Ended`. `process` and `bubblewrap` are local; these
and the client of `docker` run under one supervisor (`supervised`), which bounds output, time and the scratch folder,
and kills what is left. `kubernetes` goes by `kubectl`.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from ...config import MIB, HarnessSettings
from .readable import Readable

_SIGNALLED: Final = 128


class HarnessError(RuntimeError):
    """Report that a command could not be run, reached a limit, was killed, or never called the model: the error of one
    rollout, which touches no other."""


@dataclass(frozen=True)
class SandboxLimits:
    """Bounds of one command with all of its processes."""

    seconds: float
    cpu_seconds: float
    memory: int
    """Bytes."""
    processes: int
    """Processes and threads."""
    file: int
    """Bytes of one file."""
    disk: int
    """Bytes of its folders."""
    output: int
    """Bytes that are kept of each output."""

    @classmethod
    def of(cls, settings: HarnessSettings, seconds: float) -> SandboxLimits:
        """Return the limits that the settings give to a command that may take so many seconds."""
        return cls(
            seconds=seconds,
            cpu_seconds=settings.sandbox_cpu_seconds,
            memory=settings.sandbox_memory_mib * MIB,
            processes=settings.sandbox_processes,
            file=settings.sandbox_file_mib * MIB,
            disk=settings.sandbox_disk_mib * MIB,
            output=settings.sandbox_output_kib << 10,
        )


@dataclass(frozen=True)
class Confined:
    """A command, and the folders that it sees."""

    words: Sequence[str]
    env: Mapping[str, str]
    workspace: Path
    """Folder where it runs, which it may write to."""
    writable: Sequence[Path]
    """Other folders that it may write to."""
    given: Sequence[Path]
    """Files and folders of the rollout that it may read."""
    readable: Readable
    """Programs and files of this computer that it may read, where it runs on it."""
    limits: SandboxLimits
    gateway: tuple[str, int] | None
    """Host and port of the gateway; None for a command that asks no model."""
    image: str = ""
    """Image of a container."""


@dataclass(frozen=True)
class Ended:
    """The end of a command."""

    exit_code: int | None
    """Exit code; minus the number of the signal that killed it; None where a limit was reached."""
    limit: str | None = None
    """Name of the setting of the limit that was reached."""
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory: int = 0
    """Most bytes at once of all its processes; 0 where nobody could measure it."""
    left_behind: int = 0
    """Processes that ran on when the command had ended, and were killed."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Facts about the sandbox, for the record."""

    def describe(self) -> str:
        """Return in words how it ended."""
        if self.limit is not None:
            return f"reached the limit `{self.limit}`"
        code = self.exit_code or 0
        if code >= 0:
            return f"ended with exit code {code}"
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"


class Sandbox(Protocol):
    """A place where commands run."""

    async def run(self, confined: Confined) -> Ended:
        """Run a command to its end; none of its processes is left when this returns, or raises.

        Raises:
            HarnessError: it could not be started, or not be ended.
        """
        ...

    def base_url(self, url: str) -> str:
        """Return the address under which the command reaches a gateway that is at `url` for this process.

        Raises:
            HarnessError: it cannot reach it.
        """
        ...


def exit_code_of(status: int) -> int:
    """Return the exit code of a program that ran within another, which tells a signal as 128 and its number."""
    return _SIGNALLED - status if _SIGNALLED < status <= _SIGNALLED + 64 else status
