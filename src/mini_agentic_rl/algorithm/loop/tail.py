"""The tail of a step: what waiting for its slowest rollouts costs."""

from __future__ import annotations

from collections.abc import Sequence

from ...types import Rollout

_SHARE = 8
"""The tail is the time of the last of so many rollouts."""


def tail_seconds(rollouts: Sequence[Rollout], elapsed: float) -> float:
    """Return the seconds in which at most an eighth of the rollouts (rounded down, but one at least) had not ended.

    A single rollout has no tail: no other one waited for it.

    Args:
        rollouts: those that were started together, all ended.
        elapsed: seconds from their start until all were seen to have ended. The times at which rollouts end are times
            of day, and somebody may set the clock meanwhile: no tail is longer than this.
    """
    ends = sorted(rollout.end_time for rollout in rollouts if rollout.end_time is not None)
    few = max(1, len(ends) // _SHARE)
    if len(ends) <= few:
        return 0.0
    return min(elapsed, ends[-1] - ends[-1 - few])
