"""A process that answers lines: in order, in time, and again after whatever happened to it."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator

import psutil
import pytest

from mini_agentic_rl.processes import DeadlineProcess, EndedError, LateError, NotReadyError, deadline
from processes import all_have_ended

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


def test_a_late_answer_costs_the_process_its_life_and_is_given_to_nobody(helper: DeadlineProcess) -> None:
    first = psutil.Process(helper.ask(["pid", None], 5))
    with pytest.raises(LateError, match=r"within 0\.2 s"):
        helper.ask(["sleep", 3600], 0.2)
    assert not first.is_running()
    assert helper.ask(["say", "next"], 5) == "next"


def test_a_process_that_ends_is_told_with_its_status_and_replaced(helper: DeadlineProcess) -> None:
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
