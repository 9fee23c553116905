"""SIGTERM as Ctrl-C: handled by all that handles an interruption, once; a second one ends at once."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are those of Unix")

START = """
import asyncio, os, signal, sys, threading, time
from mini_agentic_rl.processes import deferred_interrupt, stops_cleanly, terminated, serve_until_signal
def send(number):
    os.kill(os.getpid(), number)
"""


def _run(body: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", START + body], capture_output=True, text=True, check=False, timeout=120
    )
    return done.returncode, done.stdout, done.stderr


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


def test_a_handler_of_the_users_own_is_left_alone() -> None:
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
