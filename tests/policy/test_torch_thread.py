"""Jobs and the engine's steps on the one thread of torch."""

from __future__ import annotations

import asyncio
import threading

import pytest

from mini_agentic_rl.policy import PolicyError, TorchThread


class Counting:
    """An engine with so many steps to do."""

    def __init__(self, steps: int) -> None:
        self.left = steps
        self.threads: set[str] = set()
        self.done = threading.Event()
        self.abandoned = False

    def pending(self) -> bool:
        return self.left > 0

    def step(self) -> None:
        self.threads.add(threading.current_thread().name)
        self.left -= 1
        if self.left == 0:
            self.done.set()

    def abandon(self) -> None:
        self.abandoned = True


@pytest.fixture
def thread():
    made = TorchThread()
    yield made
    made.close()


def test_jobs_run_in_order_on_one_thread(thread):
    seen: list[tuple[int, str]] = []
    futures = [thread.submit(lambda n=n: seen.append((n, threading.current_thread().name))) for n in range(5)]
    for future in futures:
        future.result(10)
    assert seen == [(n, "torch") for n in range(5)]


def test_the_caller_gets_the_result_and_the_error(thread):
    assert thread.call(lambda: thread.call(lambda: 7)) == 7
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda: 1 // 0)
    assert thread.call(lambda: 8) == 8


def test_steps_are_done_while_no_job_waits_and_a_job_goes_before_the_next_one(thread):
    work = Counting(5)
    thread.attend(work)
    assert work.done.wait(10)
    assert work.threads == {"torch"}
    work.left = 10**9
    left = thread.call(lambda: work.left)
    assert thread.call(lambda: work.left) <= left
    work.left = 0


def test_closing_finishes_the_jobs_that_wait_and_abandons_the_engine(thread):
    work, go_on, results = Counting(0), threading.Event(), []
    thread.attend(work)
    thread.submit(lambda: go_on.wait(10))
    waiting = thread.submit(lambda: results.append("done"))
    closing = threading.Thread(target=thread.close)
    closing.start()
    go_on.set()
    closing.join(10)
    assert waiting.done()
    assert results == ["done"]
    assert work.abandoned
    with pytest.raises(PolicyError, match="closed"):
        thread.submit(lambda: None)


def test_an_engine_that_fails_is_abandoned_and_jobs_go_on(thread, caplog):
    class Failing(Counting):
        def step(self) -> None:
            raise MemoryError("no memory")

    work = Failing(10**9)
    thread.attend(work)
    assert thread.submit(lambda: 7).result(10) == 7
    assert thread.submit(lambda: 8).result(10) == 8
    while not work.abandoned:
        thread.submit(lambda: None).result(10)
    assert "no memory" in caplog.text


async def test_a_job_that_stops_iterating_ends_who_awaits_it(thread):
    job = thread.submit(lambda: next(iter(())))
    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(asyncio.wrap_future(job), 10)
