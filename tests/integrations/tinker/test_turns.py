"""The order of a client's requests, and the bounds of what it has open."""

from __future__ import annotations

import asyncio

import pytest

from mini_agentic_rl.http import BadRequestError, OverloadedError
from mini_agentic_rl.integrations.tinker.promises import FETCHED_SECONDS, GoneError, NumberedTurns, Promise, Promises
from mini_agentic_rl.integrations.tinker.settings import RefusedError


class Recorder:
    def __init__(self) -> None:
        self.done: list[int] = []

    def work(self, number: int, error: Exception | None = None):
        async def work() -> int:
            await asyncio.sleep(0)
            self.done.append(number)
            if error is not None:
                raise error
            return number

        return work


async def test_requests_are_done_in_the_order_of_their_numbers_however_they_arrive():
    turns, seen = NumberedTurns(1, gap_seconds=60), Recorder()
    promises = {number: Promise(str(number), "s") for number in (3, 2, 4, 1)}
    for number, promise in promises.items():
        turns.put(number, promise, seen.work(number))
        await asyncio.sleep(0)
    assert all([await promise.wait(60) for promise in promises.values()])
    assert seen.done == [1, 2, 3, 4]
    assert promises[3].result == 3


async def test_a_request_that_fails_holds_up_none_behind_it():
    turns, seen = NumberedTurns(1, gap_seconds=60), Recorder()
    first, second = Promise("1", "s"), Promise("2", "s")
    turns.put(1, first, seen.work(1, ZeroDivisionError()))
    turns.put(2, second, seen.work(2))
    assert await second.wait(60)
    assert second.result == 2
    assert first.failure is not None
    assert first.failure.category == "server"
    with pytest.raises(BadRequestError, match="seq_id 2 was served already"):
        turns.number(2)
    assert turns.number(None) == 3


async def test_requests_behind_one_that_never_comes_fail_and_later_ones_are_done():
    turns, seen = NumberedTurns(1, gap_seconds=0.01), Recorder()
    third, fourth = Promise("3", "s"), Promise("4", "s")
    turns.put(3, third, seen.work(3))
    assert await third.wait(60)
    assert "number 1 of this client never arrived" in str(third.failure)
    turns.put(4, fourth, seen.work(4))
    assert await fourth.wait(60)
    assert seen.done == [4]


async def test_open_requests_are_bounded_and_fetched_ones_forgotten_in_time():
    now = [0.0]
    promises = Promises(2, clock=lambda: now[0])
    first = promises.open("a", "one")
    promises.open("b", "one")
    with pytest.raises(OverloadedError, match="2 requests open, which is the most"):
        promises.open("c", "one")
    promises.open("d", "two")
    promises.fetched(first)
    promises.open("c", "one")
    assert promises.get("a") is first
    now[0] = FETCHED_SECONDS + 1
    with pytest.raises(GoneError, match="no request 'a' any more"):
        promises.get("a")
    promises.drop("one")
    assert len(promises) == 1


async def test_a_session_that_ends_fails_what_waits():
    promises, seen = Promises(9), Recorder()
    waiting = promises.open("a", "one")
    waiting.work = asyncio.create_task(waiting.settle(lambda: asyncio.sleep(3600)))
    await asyncio.sleep(0)
    promises.drop("one")
    assert await waiting.wait(60)
    assert isinstance(waiting.failure, RefusedError)
    assert seen.done == []
