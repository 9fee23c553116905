"""The cores that others leave free are measured, and what a process and its children use is not theirs."""

from __future__ import annotations

import pytest

from mini_agentic_rl.processes import CoreWatch, allowed_cores, busy_seconds, computer, seconds_of_family


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
    ("own", "others", "free"), [(2.0, 0.0, 2.0), (0.0, 0.0, 2.0), (1.2, 0.8, 1.2), (0.5, 1.5, 0.5), (0.1, 1.9, 0.1)]
)
def test_the_cores_that_others_use_are_not_free(monkeypatch, own, others, free):
    machine = Machine(monkeypatch, 2.0, 2)
    watch = CoreWatch()
    machine.run(10.0, own=own, others=others)
    assert watch.use().free == pytest.approx(free)


def test_neighbours_on_other_cores_of_a_large_machine_take_nothing_away(monkeypatch):
    machine = Machine(monkeypatch, 2.0, 64)
    watch = CoreWatch()
    machine.run(10.0, own=2.0, others=40.0)
    assert (watch.use().cores, watch.use().free) == (2.0, 2.0)


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
