"""The token bucket of a key."""

from __future__ import annotations

from mini_agentic_rl.http.admission import RequestRate


def test_a_minutes_worth_passes_at_once_and_then_one_each_share_of_it():
    now = [100.0]
    rate = RequestRate(30, clock=lambda: now[0])
    assert [rate.take("a") for _ in range(30)] == [0.0] * 30
    assert rate.take("a") == 2.0
    now[0] += 1.5
    assert rate.take("a") == 0.5
    now[0] += 0.5
    assert rate.take("a") == 0.0
    assert rate.take("a") == 2.0


def test_a_key_does_not_use_up_anothers_rate():
    rate = RequestRate(1, clock=lambda: 0.0)
    assert rate.take("a") == 0.0
    assert rate.take("a") > 0.0
    assert rate.take("b") == 0.0


def test_an_idle_key_saves_up_a_minutes_worth_and_no_more():
    now = [0.0]
    rate = RequestRate(2, clock=lambda: now[0])
    rate.take("a")
    now[0] += 3600.0
    assert [rate.take("a") > 0 for _ in range(3)] == [False, False, True]
