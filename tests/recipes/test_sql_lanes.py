"""Turns at the processes of a lane: in the order in which callers came, and none for who waited too long."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from mini_agentic_rl.recipes.sql.tool.database import BusyError, Lane


def _waiting(lane: Lane, number: int) -> None:
    end = time.monotonic() + 10
    while len(lane._turns) < number:
        assert time.monotonic() < end
        time.sleep(0.001)


def test_turns_are_taken_in_the_order_of_arrival_by_newcomers_too() -> None:
    made: list[Any] = []

    def make() -> Any:
        made.append(object())
        return made[-1]

    lane, served = Lane(make, 1), list[int]()

    def ask(number: int) -> None:
        for _ in range(3):
            with lane.process(30):
                served.append(number)
                time.sleep(0.002)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    with lane.process(1):
        for number, thread in enumerate(threads):
            thread.start()
            _waiting(lane, number + 1)
    for thread in threads:
        thread.join(30)
    assert served[:4] == [0, 1, 2, 3]
    assert len(served) == 12
    assert len(made) == 1


def test_who_gives_up_waiting_leaves_the_turn_to_the_next() -> None:
    lane, served = Lane(object, 1), list[str]()

    def ask(seconds: float, name: str) -> None:
        try:
            with lane.process(seconds):
                served.append(name)
        except BusyError:
            served.append(f"{name} gave up")

    impatient = threading.Thread(target=ask, args=(0.05, "impatient"))
    patient = threading.Thread(target=ask, args=(30, "patient"))
    with lane.process(1):
        impatient.start()
        _waiting(lane, 1)
        patient.start()
        impatient.join(10)
        with pytest.raises(BusyError), lane.process(0):
            pass
    patient.join(10)
    assert served == ["impatient gave up", "patient"]
