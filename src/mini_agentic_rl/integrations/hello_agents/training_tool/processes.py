"""Trainings in processes of their own: started, found again, and ended.

A training is known by its process's command line, which names its output folder. So any tool over the same root finds
it, also one that was started later, and nothing is left behind by a process that was killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import psutil

WORKER = "mini_agentic_rl.integrations.hello_agents.training_tool.worker"
_NAMED_SECONDS: Final = 5.0


def start_worker(folder: Path, job: bytes, log: Path) -> subprocess.Popen[bytes]:
    """Start the process that trains into `folder`; it reads `job` and writes its output to `log`.

    It has a session of its own: Ctrl-C in the terminal of the agent, or the agent's end, does not end it.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", WORKER, str(folder)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
    assert process.stdin is not None
    try:
        with process.stdin as pipe:
            pipe.write(job)
    except BrokenPipeError:  # it has ended already: its log says why
        pass
    _wait_for_command_line(process.pid)
    return process


def _wait_for_command_line(pid: int) -> None:
    """Wait until the system shows by what a training is known: for a moment after its start it may show nothing, and
    whoever looked then would take the training for failed."""
    end = time.monotonic() + _NAMED_SECONDS
    with contextlib.suppress(psutil.Error):  # it has ended already
        while WORKER not in psutil.Process(pid).cmdline() and time.monotonic() < end:
            time.sleep(0.005)


def running(root: Path) -> dict[Path, psutil.Process]:
    """Return the processes that train into folders inside `root`, by folder."""
    found = {}
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if WORKER in words and process.info["status"] != psutil.STATUS_ZOMBIE:
            folder = Path(words[-1])
            if folder.is_relative_to(root):
                found[folder] = process
    return found


def interrupt(process: psutil.Process, wait_seconds: float) -> bool:
    """Send SIGINT, and wait; return True if it has ended within so many seconds."""
    try:
        process.send_signal(signal.SIGINT)
        process.wait(wait_seconds)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True
