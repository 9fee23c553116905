"""Settings that suit a computer, and the minutes that `make train` takes on it, from what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from ...metrics import number
from .speed import Speed

_GB: Final = 10**9
_SMALL_CARD: Final = 6 * _GB
_LONG_STEP: Final = 180.0
"""Seconds of a step of `make train` above which fewer tasks a step show sooner whether it learns."""

_QUIET: Final = 0.75
"""Share of the cores that has to be free for the speed that was measured to be the computer's own."""


@dataclass(frozen=True)
class _Work:
    """Tokens of a part of `make train`, as a recorded run had them."""

    sampled: float = 0.0
    learned: float = 0.0

    def seconds(self, speed: Speed) -> float:
        return self.sampled / (_SAMPLING_SHARE * speed.sampled) + self.learned / (_LEARNING_SHARE * speed.learned)


_STEPS: Final = 20
_TASKS: Final = 8
_START_SECONDS: Final = 15.0
_SAMPLING_SHARE: Final = 0.6
"""Share of the speed test's rate that a run reaches: its batches run empty at their ends, and wait for agents."""
_LEARNING_SHARE: Final = 0.5
"""The same of learning: its chunks are cut where the tree forks, and steps are taken between them."""
_IMITATION: Final = _Work(sampled=2_800, learned=9_300)
"""16 batches of 4 conversations, about 580 tokens each, and a probe of 64 rollouts."""
_MEASUREMENTS: Final = _Work(sampled=40_000)
"""24,000 sampled tokens, which take longer there: the prompts of four calls are computed beside them."""
_STEP: Final = _Work(sampled=3_100, learned=2_700)
"""2,170 tokens of the tree are learned, and a quarter of them scored again."""


@dataclass(frozen=True)
class RecommendedOption:
    """A setting of `train`, and why."""

    setting: str
    value: str
    why: str


@dataclass(frozen=True)
class Recommendation:
    """Settings that follow from the checks."""

    options: Sequence[RecommendedOption]
    train_minutes: float | None
    """Of `make train`, without the installation; None where the speed was not measured."""

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"options": [asdict(one) for one in self.options], "train_minutes": self.train_minutes}


def recommend(
    speed: Speed | None, *, memory: int, free: float, card_memory: int | None, planned_peak: int
) -> Recommendation:
    """Return settings for a computer.

    Args:
        memory: bytes that are free.
        free: share of this process's cores that nobody else used during the speed test.
        card_memory: bytes of the card; None without one.
        planned_peak: bytes that the default settings of `train` are planned to take.
    """
    options = []
    if speed is not None:
        options.append(RecommendedOption("dtype", speed.dtype, "the fastest here, and what `auto` takes"))
    if card_memory is not None and card_memory <= _SMALL_CARD:
        options.append(RecommendedOption("preset", "4gb", "chooses what fits into the card's memory"))
    elif card_memory is None and memory < planned_peak:
        fits = f"{memory / _GB:.1f} GB are free and {planned_peak / _GB:.1f} GB are planned"
        options.append(RecommendedOption("preset", "4gb", f"{fits}; it chooses what takes less"))
    minutes = None
    if speed is not None:
        step = _STEP.seconds(speed)
        minutes = (_START_SECONDS + _IMITATION.seconds(speed) + _MEASUREMENTS.seconds(speed) + _STEPS * step) / 60
        if step > _LONG_STEP and free >= _QUIET:  # beside other work it is that work that is slow
            tasks = max(4, round(_TASKS * _LONG_STEP / step))
            why = f"a step of {_TASKS} would take {number(step)} s"
            options.append(RecommendedOption("tasks_per_step", str(tasks), why))
    return Recommendation(options, minutes)
