"""Steps that teach nothing: why, told once for each cause with what helps against it, and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ...errors import RunFailedError
from ...logging import CountedCauses
from ...metrics import IDLE, IdleCause, counted, every, idle_cause, latest, percent
from .sampling import SampledStep

_MANY = 0.5
"""Fraction of rollouts ended by the length bound from which on the message mentions it."""
_HOPELESS_STEPS = 3
_HOPELESS_ROLLOUTS = 24


class IdleSteps:
    """Counts the steps that taught nothing because the rollouts of each task had the same reward.

    Args:
        done: steps that the run had done before it was resumed; they are not looked at.
    """

    def __init__(self, done: int = 0) -> None:
        self._done = done
        self.causes: Counter[IdleCause] = Counter()
        self.steps = 0

    def after_step(self, metrics: Mapping[str, float]) -> str | None:
        """Return the message after a step: the first that teaches nothing for a cause says so."""
        self.steps += 1
        reward = metrics.get("reward/mean")  # without it every rollout failed, and the log said why
        if reward is None or any(name.split("/")[-1] == "loss" for name in metrics):
            return None
        cause = idle_cause(reward, metrics.get("reward/std", 0.0))
        self.causes[cause] += 1
        if self.causes[cause] > 1:
            return None
        seen, advice = IDLE[cause]
        truncated = metrics.get("rollout/truncated", 0.0)
        if truncated >= _MANY and cause != "solved":
            advice = f"{percent(truncated, 0)} of the rollouts ended at `max_new_tokens`: raise it; else {advice}"
        return f"nothing to learn from in step {self._done + self.steps}: {seen.format(reward=reward)}: {advice}"

    def at_the_end(self) -> str | None:
        """Return the message after the last step."""
        if not self.causes:
            return None
        idle = self.causes.total()
        (cause, count), *others = self.causes.most_common()
        advice = IDLE[cause][1]
        most = f" (in {count} for one cause)" if others else ""
        return f"{idle} of {counted(self.steps, 'step')} had nothing to learn from{most}: {advice}"


class LostSteps:
    """Ends a run that only loses rollouts."""

    def __init__(self) -> None:
        self._steps = 0
        self._causes = CountedCauses()

    def after_step(self, found: SampledStep) -> None:
        """Take note of a step.

        Raises:
            RunFailedError: no rollout of the last steps could be trained, and they were many enough.
        """
        if found.trainable:
            self._steps, self._causes = 0, CountedCauses()
            return
        self._steps += 1
        _add(self._causes, found.untrained)
        lost = self._causes.counts.total()
        if self._steps >= _HOPELESS_STEPS and lost >= _HOPELESS_ROLLOUTS:
            raise RunFailedError(f"{every(lost, 'rollout')} of {latest(self._steps, 'step')}", self._causes.counts)


def failure(rollouts: int, untrained: Mapping[str, int]) -> RunFailedError:
    """Return the end of a run of which no rollout could be trained, for these reasons."""
    return RunFailedError(f"{every(rollouts, 'rollout')} of the training", _add(CountedCauses(), untrained).counts)


def untrained_in_all(rollouts: int, untrained: Mapping[str, int]) -> str | None:
    """Return how many rollouts of a run were not trained, and why most of them; None where all were."""
    causes = _add(CountedCauses(), untrained)
    if not causes.counts:
        return None
    reason, count = causes.counts.most_common(1)[0]
    most = "" if len(causes.counts) == 1 else f"; {count} of them"
    return f"{causes.counts.total()} of {counted(rollouts, 'rollout')} were not trained{most}: {reason}"


def _add(causes: CountedCauses, reasons: Mapping[str, int]) -> CountedCauses:
    for reason, count in reasons.items():
        causes.add(reason, count)
    return causes
