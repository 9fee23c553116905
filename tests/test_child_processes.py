"""Processes that end with the one that started them, whatever they are doing and however that one ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from mini_agentic_rl.processes import run_child, start_child
from processes import all_have_ended

PARENT = """
import sys, threading, time
from mini_agentic_rl.processes import children
def start():
    print(children.start_child([sys.executable, "-c", "print(flush=True)\\nwhile True: pass"]).pid, flush=True)
threading.Thread(target=start).start()
time.sleep(600)
"""


def test_a_process_that_computes_dies_with_its_parent_and_not_with_the_thread_that_started_it():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        lines = sorted(parent.stdout.readline().strip() for _ in range(2))  # the child's is empty: it has begun
        child = psutil.Process(int(lines[1]))
        assert child.is_running()
        parent.kill()
        assert all_have_ended([child], 30)


def test_a_program_runs_as_if_it_had_been_started_directly():
    done = run_child([sys.executable, "-c", "import sys; print(sys.argv); print('no', file=sys.stderr); sys.exit(3)"])
    assert (done.returncode, done.stdout, done.stderr) == (3, "['-c']\n", "no\n")
    with pytest.raises(FileNotFoundError, match="no_such_program"):
        start_child(["no_such_program"])


@pytest.mark.skipif(sys.platform == "win32", reason="signals are those of Unix")
def test_a_program_gets_the_signals_as_they_are_usually_set():
    ask = [sys.executable, "-c", "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"]
    assert run_child(ask).stdout == "True\n"
    assert run_child(["sh", "-c", "kill -PIPE $$; echo ignored"]).returncode == -signal.SIGPIPE


def test_what_was_left_for_the_death_of_a_process_is_done_unless_it_was_revoked(tmp_path):
    program = (
        "import os, signal\nfrom mini_agentic_rl.processes import at_death\n"
        f"at_death(os.rmdir, {str(tmp_path / 'nowhere')!r})\nat_death(os.mkdir, {str(tmp_path / 'kept')!r})\n"
        f"at_death(os.mkdir, {str(tmp_path / 'revoked')!r})()\n"
        "if os.fork():\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        f"import time\nwhile not os.path.exists({str(tmp_path / 'kept')!r}):\n    time.sleep(0.02)"
    )
    parent = subprocess.run([sys.executable, "-c", program], check=False)
    assert parent.returncode == -signal.SIGKILL
    watchdog_has_ended(tmp_path / "kept")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_watchdog_that_was_killed_is_replaced_with_all_of_its_calls(tmp_path):
    program = (
        "import os, signal\nfrom mini_agentic_rl.processes import children as c\n"
        f"c.at_death(os.mkdir, {str(tmp_path / 'first')!r})\n"
        "os.killpg(c._watchdog.pid, signal.SIGKILL)\nwhile c._write(c._watchdog, [99]):\n    pass\n"
        f"c.at_death(os.mkdir, {str(tmp_path / 'second')!r})\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", program], check=False)
    watchdog_has_ended(tmp_path / "second")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]


def watchdog_has_ended(sign: Path) -> None:
    """Wait until the call that makes a folder was made; calls are made in the order in which they were left."""

    end = time.monotonic() + 60
    while not sign.exists():
        assert time.monotonic() < end, f"{sign} was not made"
        time.sleep(0.02)
