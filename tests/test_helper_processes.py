"""Processes that end with the one that started them, helpers with a deadline, and the cores that others leave free."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mini_agentic_rl.processes import (
    Child,
    CoreWatch,
    DeadlineProcess,
    EndedError,
    LateError,
    NotReadyError,
    allowed_cores,
    busy_seconds,
    computer,
    deadline,
    run_child,
    seconds_of_family,
    start_child,
)
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


WORKER = """
import os
import sys
import time
from mini_agentic_rl.processes import NotReadyError, serve_answers


def answer(question):
    print("not an answer", flush=True)
    verb, value = question
    if verb == "sleep":
        time.sleep(value)
    elif verb == "exit":
        os._exit(value)
    elif verb == "pid":
        return os.getpid()
    return value


def prepare():
    print("loading", flush=True)
    if sys.argv[1:] == ["hang"]:
        time.sleep(60)
    if sys.argv[1:] == ["refuse"]:
        raise NotReadyError("the file\\nis damaged")
    return answer


serve_answers(prepare)
"""


@pytest.fixture(scope="module", autouse=True)
def _module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("modules")
    (folder / "answering.py").write_text(WORKER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        yield


@pytest.fixture(scope="module")
def helper() -> Iterator[DeadlineProcess]:
    helper = DeadlineProcess("answering")
    yield helper
    helper.close()


def test_one_process_answers_all_questions_and_what_it_prints_is_no_answer(helper: DeadlineProcess) -> None:
    first = helper.ask(["pid", None], 5)
    values = [1.5, None, "a\nb\r\n名\ud83d", [[]], {"k": [True]}]
    assert [helper.ask(["say", value], 5) for value in values] == values
    assert helper.ask(["pid", None], 5) == first


def test_threads_get_their_own_answers(helper: DeadlineProcess) -> None:
    found: list[bool] = []
    threads = [threading.Thread(target=lambda n=n: found.append(helper.ask(["say", n], 5) == n)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 16


def test_a_process_that_is_late_or_ends_is_replaced_and_its_answer_is_given_to_nobody(helper: DeadlineProcess) -> None:
    first = psutil.Process(helper.ask(["pid", None], 5))
    with pytest.raises(LateError, match=r"within 0\.2 s"):
        helper.ask(["sleep", 3600], 0.2)
    assert not first.is_running()
    with pytest.raises(EndedError) as told:
        helper.ask(["exit", 3], 5)
    assert told.value.status == 3
    assert helper.ask(["say", "next"], 5) == "next"


@pytest.mark.skipif(sys.platform == "win32", reason="signals are those of Unix")
def test_the_answer_to_an_interrupted_question_is_not_taken_for_the_next_one(helper: DeadlineProcess) -> None:
    helper.ask(["say", None], 5)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            helper.ask(["sleep", 0.4], 5)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert helper.ask(["say", "next"], 5) == "next"


def test_a_process_that_does_not_come_up_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotReadyError, match="the file\nis damaged"):
        DeadlineProcess("answering", "refuse").ask(1, 5)
    with pytest.raises(NotReadyError, match="-m no_such_module ended with status 1 before it was ready"):
        DeadlineProcess("no_such_module").ask(1, 5)
    monkeypatch.setattr(deadline, "START_LIMIT", 0.2)
    with pytest.raises(NotReadyError, match=r"-m answering was not ready within 0\.2 s"):
        DeadlineProcess("answering", "hang").ask(1, 5)


def test_the_process_ends_with_what_has_started_it() -> None:
    helper = DeadlineProcess("answering")
    closed = psutil.Process(helper.ask(["pid", None], 5))
    helper.close()
    assert not closed.is_running()
    forgotten = psutil.Process(helper.ask(["pid", None], 5))
    del helper
    gc.collect()
    assert all_have_ended([forgotten], 5)


class Machine:
    """Clocks of a machine."""

    def __init__(self, monkeypatch, allowed, cores):
        self.at = self.busy = self.own = 0.0
        monkeypatch.setattr(computer, "allowed_cores", lambda: allowed)
        monkeypatch.setattr(computer.psutil, "cpu_count", lambda: cores)
        monkeypatch.setattr(CoreWatch, "_now", lambda watch: (self.at, self.busy, self.own))

    def run(self, seconds, *, own=0.0, others=0.0):
        self.at += seconds
        self.own += own * seconds
        self.busy += (own + others) * seconds


@pytest.mark.parametrize(
    ("cores", "own", "others", "free"),
    [(2, 2.0, 0.0, 2.0), (2, 0.0, 0.0, 2.0), (2, 1.2, 0.8, 1.2), (2, 0.1, 1.9, 0.1), (64, 2.0, 40.0, 2.0)],
)
def test_the_cores_that_others_use_are_not_free(monkeypatch, cores, own, others, free):
    machine = Machine(monkeypatch, 2.0, cores)
    watch = CoreWatch()
    machine.run(10.0, own=own, others=others)
    assert watch.use().free == pytest.approx(free)


def test_each_answer_is_about_the_time_since_the_last_one(monkeypatch):
    machine = Machine(monkeypatch, 2.0, 2)
    watch = CoreWatch()
    machine.run(5.0, others=2.0)
    assert watch.use().free == pytest.approx(0.0)
    machine.run(5.0, own=2.0)
    assert watch.use().free == pytest.approx(2.0)
    assert watch.use().free == 2.0  # no time has gone by


def test_the_clocks_of_the_system_go_forward():
    before = busy_seconds(), seconds_of_family()
    sum(range(2_000_000))
    assert allowed_cores() > 0
    assert busy_seconds() >= before[0]
    assert seconds_of_family() > before[1]


async def test_a_process_whose_argument_cannot_be_sent_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises((AttributeError, pickle.PicklingError)):
        Child("child", "os:getpid", lambda: None, 1.0)
    assert not list(tmp_path.iterdir())
