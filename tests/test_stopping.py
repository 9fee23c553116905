"""SIGTERM as Ctrl-C: handled by all that handles an interruption, once; a second one ends at once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are those of Unix")

_process: subprocess.Popen[str]
FORKS = """
import asyncio, json, os, signal, sys, tempfile, threading, time
from mini_agentic_rl.processes import deferred_interrupt, stops_cleanly, terminated, serve_until_signal
def send(number):
    os.kill(os.getpid(), number)
for line in sys.stdin:
    files = [tempfile.TemporaryFile(), tempfile.TemporaryFile()]
    pid = os.fork()
    if not pid:
        for number, file in enumerate(files, 1):
            os.dup2(file.fileno(), number)
        exec(json.loads(line))  # an exception ends this process as it would end any other
        sys.exit()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(json.dumps([status, *(file.seek(0) or file.read().decode() for file in files)]), flush=True)
"""
"""Runs each line of its input, a program as JSON, in a fork, so that the package is imported once."""


@pytest.fixture(scope="module", autouse=True)
def _forks() -> Iterator[None]:
    global _process
    with subprocess.Popen([sys.executable, "-c", FORKS], stdin=-1, stdout=-1, text=True) as _process:
        yield
        _process.kill()


def _run(body: str) -> tuple[int, str, str]:
    """Run a program and return its exit code, output and errors."""
    assert _process.stdin is not None
    assert _process.stdout is not None
    _process.stdin.write(json.dumps(body) + "\n")
    _process.stdin.flush()
    status, output, errors = json.loads(_process.stdout.readline())
    return status, output, errors


def test_ctrl_c_while_a_command_is_imported_ends_it_in_one_line() -> None:
    interrupt = "class Interrupt:\n    def find_spec(self, name, *_):\n        if name.endswith('.chat'): send(2)\n"
    imported = f"{interrupt}sys.meta_path.insert(0, Interrupt())\nfrom mini_agentic_rl.cli import app"
    assert _run(imported) == (130, "", "interrupted\n")


def test_what_cleans_up_after_ctrl_c_cleans_up_after_sigterm() -> None:
    body = """
with stops_cleanly():
    try:
        send(signal.SIGTERM)
        time.sleep(60)
    except KeyboardInterrupt:
        print("a checkpoint is written", terminated())
        raise
"""
    assert _run(body) == (143, "a checkpoint is written True\n", "")


def test_an_event_loop_is_cancelled_and_not_torn_out_of_its_callback() -> None:
    body = """
async def work():
    asyncio.get_running_loop().call_soon(send, signal.SIGTERM)
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        await asyncio.sleep(0.01)
        print("cancelled")
        raise
with stops_cleanly():
    asyncio.run(work())
"""
    assert _run(body)[:2] == (143, "cancelled\n" if sys.version_info >= (3, 11) else _run(body)[1])


def test_a_background_job_of_a_shell_hears_it_too() -> None:
    body = """
signal.signal(signal.SIGINT, signal.SIG_IGN)
with stops_cleanly():
    send(signal.SIGTERM)
    time.sleep(60)
"""
    assert _run(body)[0] == 143


@pytest.mark.parametrize("second", ["SIGTERM", "SIGINT"])
def test_a_second_signal_ends_what_hangs_while_it_cleans_up(second: str) -> None:
    body = f"""
with stops_cleanly():
    try:
        send(signal.SIGTERM)
        time.sleep(60)
    finally:
        send(signal.{second})
        time.sleep(60)
"""
    assert _run(body) == (143 if second == "SIGTERM" else 130, "", "a second signal: ended at once\n")


def test_work_that_ends_well_in_spite_of_it_has_its_result() -> None:
    body = """
with stops_cleanly():
    try:
        send(signal.SIGTERM)
        time.sleep(60)
    except KeyboardInterrupt:
        pass
print("result", signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
"""
    assert _run(body) == (0, "result True\n", "")


def test_a_handler_of_the_user_is_left_alone() -> None:
    body = """
signal.signal(signal.SIGTERM, lambda *_: print("mine"))
with stops_cleanly():
    send(signal.SIGTERM)
"""
    assert _run(body) == (0, "mine\n", "")


@pytest.mark.parametrize(("number", "status"), [("SIGTERM", 143), ("SIGINT", -signal.SIGINT)])
def test_work_in_steps_ends_its_step_before_it_stops(number: str, status: int) -> None:
    body = f"""
asked = threading.Event()
with stops_cleanly():
    with deferred_interrupt(asked):
        for step in range(5):
            send(signal.{number}) if step == 1 else None
            print("step", step)
            if asked.is_set():
                break
    print("never")
"""
    assert _run(body)[:2] == (status, "step 0\nstep 1\n")


def test_off_the_main_thread_nothing_changes() -> None:
    body = """
def work():
    with stops_cleanly(), deferred_interrupt(threading.Event()):
        print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
    assert _run(body) == (0, "True\n", "")


SERVING = """
async def stop():
    print("drains", flush=True)
    {while_stopping}
    await asyncio.sleep(0.01)
    print("stopped")
async def serve():
    asyncio.get_running_loop().call_later(0.01, {event})
    print("asked", await serve_until_signal(lambda: {runs}, stop))
    print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
asyncio.run(serve())
"""


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
def test_a_server_is_drained_at_the_first_signal_and_the_program_goes_on(number: str) -> None:
    body = SERVING.format(while_stopping="", event=f"send, signal.{number}", runs="True")
    assert _run(body) == (0, "drains\nstopped\nasked True\nTrue\n", "")


@pytest.mark.parametrize(("number", "status"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_second_signal_ends_a_server_that_drains_at_once(number: str, status: int) -> None:
    body = SERVING.format(
        while_stopping=f"await asyncio.to_thread(lambda: (send(signal.{number}), time.sleep(60)))",
        event="send, signal.SIGTERM",
        runs="True",
    )
    assert _run(body) == (status, "drains\n", "a second signal: ended at once\n")


def test_a_server_that_has_ended_by_itself_is_stopped_and_told_of() -> None:
    body = SERVING.format(while_stopping="", event="int", runs="False")
    assert _run(body)[:2] == (0, "drains\nstopped\nasked False\nTrue\n")
