"""Several rewards in one: sums of scores, and sums of what each is worth within its group.

`load_reward` and `load_rewards` make them of names, as commands and settings give them.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from ..plugins import load_plugin, or_plugin
from ..user_code import load_object
from .base import (
    FAILED,
    FunctionReward,
    Reward,
    RewardError,
    RewardFunction,
    Sample,
    group_key,
    is_score,
    name_of,
    samples_of,
)
from .format import FormatReward, StepReward, ToolUseReward
from .math import AccuracyReward
from .remote import RemoteReward

_EPSILON = 1e-6
"""Added to a standard deviation, so that rewards which differ by rounding only stay small."""


def weighted_sum(scores: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Return the sum of `weights[name] * scores[name]`; a score without a weight weighs 0.

    Raises:
        ValueError: a weight names no score, or a score that counts is not finite.
    """
    if unknown := sorted(set(weights) - set(scores)):
        raise ValueError(f"weights for scores that do not exist: {', '.join(unknown)}")
    total = 0.0
    for name, weight in weights.items():
        if weight == 0:
            continue
        if not math.isfinite(scores[name] * weight):
            raise ValueError(f"the score {name!r} is {scores[name]} and its weight {weight}; both must be finite")
        total += weight * scores[name]
    return total


class WeightedSum(Reward):
    """`sum of weight * score` over the reward functions whose task a sample is.

    A function that returns None for a sample is left out of its sum; where all return None the sample has no reward.
    Where a function fails, as a judge that cannot be reached, the sample has no reward with `missing="none"`, and the
    sum of the others with "skip".
    """

    def __init__(
        self,
        functions: Sequence[RewardFunction],
        weights: Sequence[float] | None = None,
        *,
        missing: Literal["none", "skip"] = "none",
        name: str = "reward",
    ) -> None:
        """`weights` are 1 each by default. Functions of one name are told apart by a number.

        Raises:
            ValueError: there is no function, another number of weights, or a weight that is not finite.
        """
        super().__init__(name)
        weights = [1.0] * len(functions) if weights is None else list(weights)
        if not functions or len(functions) != len(weights) or not all(map(math.isfinite, weights)):
            raise ValueError(f"{len(functions)} reward functions with the weights {weights}: give each a finite weight")
        counting = (one if isinstance(one, Reward) else FunctionReward(one) for one in functions)
        self.functions = dict(zip(_names(functions), counting, strict=True))
        self.weights = dict(zip(self.functions, weights, strict=True))
        self.missing = missing

    def parts(
        self, completions: Sequence[Any], prompts: Sequence[Any] | None = None, **columns: Any
    ) -> dict[str, list[float | None]]:
        """Return the rewards of each function, by its name."""
        return self.sums_and_parts(completions, prompts, columns)[1]

    def sums_and_parts(
        self, completions: Sequence[Any], prompts: Sequence[Any] | None, columns: Mapping[str, Any]
    ) -> tuple[list[float | None], dict[str, list[float | None]]]:
        """Return the sum of each sample, and the rewards of each function by its name."""
        scores = {
            name: function.checked_scores(completions, prompts, columns) for name, function in self.functions.items()
        }
        sums = self.total(scores, samples_of(completions, prompts, columns))
        parts = {name: [score if is_score(score) else None for score in found] for name, found in scores.items()}
        return sums, parts

    def total(self, parts: Mapping[str, Sequence[float | None]], samples: Sequence[Sample]) -> list[float | None]:
        """Return the sums of `parts`, which hold `FAILED` where a function failed."""
        return [self._combined({name: scores[at] for name, scores in parts.items()}) for at in range(len(samples))]

    def _combined(self, scores: Mapping[str, float | None]) -> float | None:
        known = {name: score for name, score in scores.items() if is_score(score)}
        if not any(score is FAILED for score in scores.values()):
            if not known:
                self.failed("no function gave a reward", ", ".join(scores))
        elif self.missing == "none":
            return None
        return weighted_sum(known, {name: self.weights[name] for name in known}) if known else None

    def score_columns(
        self, completions: Sequence[Any], prompts: Sequence[Any] | None, columns: Mapping[str, Any]
    ) -> Sequence[float | None]:
        """Return the sums. If TRL offers `log_metric`, it gets the mean of each part."""
        sums, parts = self.sums_and_parts(completions, prompts, columns)
        log_metric = columns.get("log_metric")
        if callable(log_metric):
            for name, scores in parts.items():
                if known := [score for score in scores if score is not None]:
                    log_metric(f"{self.name}/{name}", statistics.fmean(known))
        return sums

    @property
    def all_errors(self) -> dict[str, Counter[str]]:
        """Return the errors of each function, by its name; those of the sum itself under its own."""
        found = {name: function.errors for name, function in self.functions.items()}
        return {**found, self.name: self.errors}


class NormalisedSum(WeightedSum):
    """`sum of weight * (score - mean of the group) / (standard deviation of the group)` over several functions.

    So a reward that varies much in a group does not drown one that varies little, and a group in which only one of them
    differs is told apart by it alone (GDPO, arXiv:2601.05242: rewards are normalised one by one, then summed). A group
    is the samples of one task: of the same `id` in their rows, else of the same prompt, or `group_size` samples in a
    row. All samples of a group have to be scored in one call.
    """

    def __init__(
        self,
        functions: Sequence[RewardFunction],
        weights: Sequence[float] | None = None,
        *,
        group_size: int | None = None,
        missing: Literal["none", "skip"] = "none",
        name: str = "reward",
    ) -> None:
        """
        Raises:
            ValueError: as for `WeightedSum`, or `group_size` is below 2.
        """
        super().__init__(functions, weights, missing=missing, name=name)
        if group_size is not None and group_size < 2:
            raise ValueError(f"group_size must be 2 or more, not {group_size}")
        self.group_size = group_size

    def total(self, parts: Mapping[str, Sequence[float | None]], samples: Sequence[Sample]) -> list[float | None]:
        """Return the sums of `parts`, each normalised within its group."""
        groups: dict[str, list[int]] = {}
        for at, sample in enumerate(samples):
            key = group_key(sample) if self.group_size is None else str(at // self.group_size)
            groups.setdefault(key, []).append(at)
        normalised = {name: _normalised(scores, list(groups.values())) for name, scores in parts.items()}
        return super().total(normalised, samples)


def _normalised(scores: Sequence[float | None], groups: Sequence[Sequence[int]]) -> list[float | None]:
    """Return each score less the mean of its group, in standard deviations of the group; what is no score stays."""
    found = list(scores)
    for group in groups:
        known = [score for at in group if is_score(score := scores[at])]
        if not known:
            continue
        mean = statistics.fmean(known)
        deviation = statistics.stdev(known, mean) if len(known) > 1 else 0.0
        for at in group:
            if is_score(score := scores[at]):
                found[at] = (score - mean) / (deviation + _EPSILON)
    return found


def _names(functions: Sequence[RewardFunction]) -> list[str]:
    names = list(map(name_of, functions))
    return [name if names.index(name) == at else f"{name}_{at + 1}" for at, name in enumerate(names)]


NAMES: dict[str, Callable[[], Reward]] = {
    "accuracy": AccuracyReward,
    "format": FormatReward,
    "boxed": lambda: FormatReward("boxed", name="boxed"),
    "thinking": lambda: FormatReward("thinking", name="thinking"),
    "steps": StepReward,
    "tool_use": ToolUseReward,
}
"""The rewards that need no settings."""


def load_reward(name: str) -> Reward:
    """Return one of `NAMES`, that of a plugin, the URL of a reward service, or `module:name` of a reward function, a
    reward or its class.

    Raises:
        RewardError: there is no such reward.
    """
    if name in NAMES:
        return NAMES[name]()
    if name.startswith(("http://", "https://")):
        return RemoteReward(name)
    plugged: Any = None if ":" in name else load_plugin("rewards", name, setting="reward")
    if ":" not in name and plugged is None:
        raise RewardError(
            f"{name!r} is unknown: give {', '.join(NAMES)}, the URL of a reward service, or module:function"
            f"{or_plugin('rewards')}",
            setting="reward",
        )
    try:
        found: Any = load_object(name) if plugged is None else plugged
        if isinstance(found, type):
            found = found()
    except Exception as error:  # the user's module may fail in any way while it is imported
        raise RewardError(f"{name!r} cannot be loaded: {type(error).__name__}: {error}", setting="reward") from error
    return found if isinstance(found, Reward) else FunctionReward(found)


def load_rewards(names: Sequence[str], *, normalise: bool = False) -> WeightedSum:
    """Return the sum of several rewards: names as for `load_reward`, with a weight as in "format=0.2".

    Raises:
        RewardError: there is no such reward, or a weight is no number.
    """
    if not names:
        raise RewardError(f"give at least one of {', '.join(NAMES)}, a URL, or module:function", setting="reward")
    pairs = [_weighted(name) for name in names]
    functions, weights = [load_reward(name) for name, _ in pairs], [weight for _, weight in pairs]
    return NormalisedSum(functions, weights) if normalise else WeightedSum(functions, weights)


def _weighted(text: str) -> tuple[str, float]:
    """Return a name and its weight. A URL may hold "=" itself, so only what reads as a number is a weight."""
    name, separator, number = text.rpartition("=")
    if not separator:
        return text, 1.0
    try:
        weight = float(number)
    except ValueError:
        if "://" in text:
            return text, 1.0
        raise RewardError(f"{text}: the weight {number!r} is no number", setting="reward") from None
    if not math.isfinite(weight):
        raise RewardError(f"{text}: the weight must be finite", setting="reward")
    return name, weight
