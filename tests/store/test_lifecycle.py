"""The state machine on its own: every status of an attempt, and what its rollout does."""

from __future__ import annotations

import pytest

from mini_agentic_rl.store import lifecycle
from mini_agentic_rl.types import Attempt, AttemptStatus, Rollout, RolloutConfig, RolloutStatus


def _rollout(status: RolloutStatus = "running", **config: object) -> Rollout:
    return Rollout(rollout_id="r", input=None, start_time=0.0, status=status, config=RolloutConfig(**config))  # type: ignore[arg-type]  # fields of the config


def _attempt(status: AttemptStatus = "running", sequence_id: int = 1, heard: float | None = None) -> Attempt:
    return Attempt(
        rollout_id="r",
        attempt_id="a",
        sequence_id=sequence_id,
        start_time=100.0,
        status=status,
        last_heartbeat_time=heard,
    )


@pytest.mark.parametrize(
    ("attempt_status", "expected"),
    [
        ("preparing", "preparing"),
        ("running", "running"),
        ("succeeded", "succeeded"),
        ("failed", "failed"),
        ("timeout", "failed"),
        ("unresponsive", "failed"),
    ],
)
def test_a_rollout_follows_its_attempt(attempt_status: AttemptStatus, expected: RolloutStatus) -> None:
    before: RolloutStatus = "running" if expected == "failed" else "requeuing"
    moved = lifecycle.rollout_following(_rollout(before), _attempt(attempt_status), now=5.0)
    assert moved.status == expected
    assert moved.end_time == (5.0 if expected in ("succeeded", "failed") else None)


@pytest.mark.parametrize("attempt_status", ["failed", "timeout", "unresponsive"])
def test_a_queued_rollout_is_not_moved_by_an_attempt_that_ends_badly(attempt_status: AttemptStatus) -> None:
    queued = _rollout("requeuing")
    assert lifecycle.rollout_following(queued, _attempt(attempt_status), now=5.0) is queued


@pytest.mark.parametrize("status", ["failed", "timeout", "unresponsive"])
def test_a_retry_needs_the_condition_and_an_attempt_left(status: AttemptStatus) -> None:
    rollout = _rollout(max_attempts=2, retry_condition=[status])
    assert lifecycle.rollout_following(rollout, _attempt(status, 1), 5.0).status == "requeuing"
    assert lifecycle.rollout_following(rollout, _attempt(status, 2), 5.0).status == "failed"
    assert lifecycle.rollout_following(_rollout(max_attempts=2), _attempt(status, 1), 5.0).status == "failed"


def test_limits_count_from_the_start_and_from_the_last_sign_of_life() -> None:
    config = RolloutConfig(timeout_seconds=50, unresponsive_seconds=10)
    assert lifecycle.deadline(_attempt(), config) == 110.0
    assert lifecycle.deadline(_attempt(heard=145.0), config) == 150.0
    assert lifecycle.overdue_status(_attempt(), config, 109.9) is None
    assert lifecycle.overdue_status(_attempt(), config, 110.0) == "unresponsive"
    assert lifecycle.overdue_status(_attempt(heard=149.0), config, 150.0) == "timeout"
    assert lifecycle.deadline(_attempt("succeeded"), config) is None
    assert lifecycle.overdue_status(_attempt("unresponsive"), config, 1e9) is None
    assert lifecycle.deadline(_attempt(), RolloutConfig()) is None


def test_a_changed_object_is_a_new_one() -> None:
    rollout, attempt = _rollout(), _attempt()
    assert lifecycle.rollout_with_status(rollout, "running", 1.0) is rollout
    assert lifecycle.rollout_with_status(rollout, "failed", 1.0) is not rollout
    assert lifecycle.attempt_after_span(attempt, 2.0).last_heartbeat_time == 2.0
    assert (rollout.status, attempt.last_heartbeat_time) == ("running", None)
