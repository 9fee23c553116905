"""Run one command to its end, within its limits, and end all that it has started; then report, as one line of JSON.

Standard input gives what to do: a line of JSON, with `argv`, `cwd`, `env`, `limits`, `files` (see `confine`), `folders`
(whose size is bounded), `after` (a command that clears away what a container leaves) and `parent`. As long as
standard input is open, whoever asked lives: once it ends, so do the command and this program.

The report has `status` (an exit code, or minus the number of a signal), `ended_by` (the limit that was reached, `asker`
where it has gone, or None), `stdout`, `stderr`, `seconds`, `cpu_seconds`, `memory` (the most at once), `left_behind`
(processes that were running when the command had ended) and `alive` (those that could not be killed); or `error`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from . import family
from .confine import confine, user_without_rights
from .folder_size import FolderSize
from .output import KeptOutput

_LOOK_SECONDS: Final = 0.05
_SHARE: Final = 5
"""Times the duration of a look that passes until the next one."""
_KILL_SECONDS: Final = 10.0
_AFTER_SECONDS: Final = 30.0


class Supervised:
    """A command that runs, and what it has come to."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._task = task
        self._limits: dict[str, Any] = task["limits"]
        self._begun = time.monotonic()
        self._reaped_cpu = 0.0
        self._memory = 0
        self._hidden: set[int] = set()
        self._status: int | None = None
        self.ended_by: str | None = None
        self._sizes = FolderSize(task["folders"])
        files = task["files"]
        user = None if files is None else user_without_rights(files["readable"])
        if user:
            _give(task["folders"], user)
        self._process = subprocess.Popen(
            task["argv"],
            cwd=task["cwd"],
            env=task["env"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=lambda: confine(task["rlimits"], files, user),
        )
        pipes = (self._process.stdout, self._process.stderr)
        self._outputs = [KeptOutput(pipe.fileno(), self._limits["output"]) for pipe in pipes if pipe is not None]
        for output in self._outputs:
            os.set_blocking(output.descriptor, False)

    def run(self) -> dict[str, Any]:
        """Watch the command until it ends, or has to be ended; return the report."""
        with selectors.DefaultSelector() as selector:
            selector.register(sys.stdin.fileno(), selectors.EVENT_READ, None)
            for output in self._outputs:
                selector.register(output.descriptor, selectors.EVENT_READ, output)
            look = 0.0
            while self._status is None and self.ended_by is None:
                for key, _ in selector.select(_LOOK_SECONDS):
                    if key.data is None:
                        if not os.read(sys.stdin.fileno(), 1):
                            self.ended_by = "asker"
                    elif not key.data.read():
                        selector.unregister(key.fd)
                if (now := time.monotonic()) >= look:
                    self._look()
                    done = time.monotonic()
                    look = done + max(_LOOK_SECONDS, _SHARE * (done - now))
        left = [pid for pid in family.descendants() if pid != self._process.pid]
        alive = not family.kill_all(self._process.pid, _KILL_SECONDS)
        for output in self._outputs:
            output.drain()
        if self.ended_by is None and self._sizes.look(now=True) > self._limits["disk"]:
            self.ended_by = "disk"
        self._after()
        return {
            "status": self._status,
            "ended_by": self.ended_by,
            "stdout": self._outputs[0].text(),
            "stderr": self._outputs[1].text(),
            "seconds": time.monotonic() - self._begun,
            "cpu_seconds": self._reaped_cpu,
            "memory": self._memory,
            "left_behind": 0 if self.ended_by else len(left),
            "alive": alive,
        }

    def _look(self) -> None:
        """Note what has ended, and compare what is taken with the limits."""
        for pid, (status, cpu) in family.reap().items():
            self._reaped_cpu += cpu
            if pid == self._process.pid:
                self._status = os.waitstatus_to_exitcode(status)
                self._process.returncode = self._status
        taken = family.usage(family.descendants())
        self._memory = max(self._memory, taken.memory)
        found = {
            "seconds": time.monotonic() - self._begun,
            "cpu_seconds": self._reaped_cpu + taken.cpu_seconds,
            "memory": math.inf if taken.hidden & self._hidden else taken.memory,
            "processes": taken.processes,
            "disk": self._sizes.look() + taken.unlinked,
        }
        for name, value in found.items():
            if name in self._limits and value > self._limits[name] and self.ended_by is None:
                self.ended_by = name
        self._hidden = taken.hidden
        if os.getppid() != self._task["parent"]:
            self.ended_by = "asker"

    def _after(self) -> None:
        if self._task["after"]:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # the report says how the command ended
                subprocess.run(
                    self._task["after"],
                    env=self._task["env"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=_AFTER_SECONDS,
                    check=False,
                )


def _give(folders: Sequence[str], user: int) -> None:
    """Make a user the owner of folders, and of the rollout's folder that they lie in."""
    for above in {os.path.dirname(folder) for folder in folders}:
        os.chown(above, user, user)
    for folder in folders:
        for place, below, names in os.walk(folder):
            for name in (".", *below, *names):
                os.chown(os.path.join(place, name), user, user, follow_symlinks=False)


def main() -> None:
    """Do what standard input says."""
    task = json.loads(_first_line())
    family.adopt_orphans()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        report = Supervised(task).run()
    except (OSError, subprocess.SubprocessError) as error:
        report = {"error": f"{task['argv'][0]}: {getattr(error, 'strerror', None) or error}"}
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


def _first_line() -> bytes:
    """Return the first line, without taking anything of what follows it."""
    line = bytearray()
    while not line.endswith(b"\n"):
        more = os.read(sys.stdin.fileno(), 1 << 16)
        if not more:
            sys.exit(1)
        line += more
    return bytes(line)
