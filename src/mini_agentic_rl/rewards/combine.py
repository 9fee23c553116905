"""Weighted sums of several rewards, and rewards by name."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from ..errors import UserError
from ..plugins import object_named
from .base import FAILED, FunctionReward, Reward, RewardError, RewardFunction, is_score, name_of
from .format import FormatReward, StepReward
from .math import AccuracyReward
from .remote import RemoteReward


def weighted_sum(scores: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Return the sum of `weights[name] * scores[name]`; a score without a weight weighs 0.

    Raises:
        ValueError: a weight names no score, or a weighted score is not finite.
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
    """Sum of `weight * score` over several reward functions.

    A function that returns None for a sample is left out of its sum; if all return None, the sample has no reward. If a
    function fails, the sample has no reward with `missing="none"`, and the sum of the other scores with "skip".
    """

    def __init__(
        self,
        functions: Sequence[RewardFunction],
        weights: Sequence[float] | None = None,
        *,
        missing: Literal["none", "skip"] = "none",
        name: str = "reward",
    ) -> None:
        """`weights` are 1 by default. Functions of the same name get a number.

        Raises:
            ValueError: no functions, another number of weights, or a weight that is not finite.
        """
        super().__init__(name)
        weights = [1.0] * len(functions) if weights is None else list(weights)
        if not functions or len(functions) != len(weights) or not all(map(math.isfinite, weights)):
            raise ValueError(f"{len(functions)} reward functions with the weights {weights}: give each a finite weight")
        names = list(map(name_of, functions))
        names = [name if names.index(name) == at else f"{name}_{at + 1}" for at, name in enumerate(names)]
        rewards = (function if isinstance(function, Reward) else FunctionReward(function) for function in functions)
        self.functions = dict(zip(names, rewards, strict=True))
        self.weights = dict(zip(self.functions, weights, strict=True))
        self.missing = missing

    def sums_and_parts(
        self, completions: Sequence[Any], prompts: Sequence[Any] | None, columns: Mapping[str, Any]
    ) -> tuple[list[float | None], dict[str, list[float | None]]]:
        """Return the sum of each sample, and the rewards of each function by name."""
        scores = {
            name: function.checked_scores(completions, prompts, columns) for name, function in self.functions.items()
        }
        parts = {name: [score if is_score(score) else None for score in part] for name, part in scores.items()}
        sums: list[float | None] = []
        for at in range(len(completions)):
            known = {name: score for name, part in parts.items() if (score := part[at]) is not None}
            has_failed = any(part[at] is FAILED for part in scores.values())
            if not known and not has_failed:
                self.failed("no function gave a reward", ", ".join(scores))
            if not known or (has_failed and self.missing == "none"):
                sums.append(None)
            else:
                sums.append(weighted_sum(known, {name: self.weights[name] for name in known}))
        return sums, parts

    def score_columns(
        self, completions: Sequence[Any], prompts: Sequence[Any] | None, columns: Mapping[str, Any]
    ) -> Sequence[float | None]:
        """Return the sums. TRL's `log_metric`, if given, gets the mean of each part."""
        sums, parts = self.sums_and_parts(completions, prompts, columns)
        log_metric = columns.get("log_metric")
        if callable(log_metric):
            for name, scores in parts.items():
                if known := [score for score in scores if score is not None]:
                    log_metric(f"{self.name}/{name}", statistics.fmean(known))
        return sums


NAMES: dict[str, Callable[[], Reward]] = {
    "accuracy": AccuracyReward,
    "format": FormatReward,
    "boxed": lambda: FormatReward("boxed", name="boxed"),
    "thinking": lambda: FormatReward("thinking", name="thinking"),
    "steps": StepReward,
}
"""Rewards that need no settings, by name."""


def load_reward(name: str) -> Reward:
    """Return a reward by its name in `NAMES`, the name of a plugin, the URL of a reward service, or `module:name` of a
    reward function, a `Reward` or its class.

    Raises:
        RewardError: there is no such reward.
    """
    if name in NAMES:
        return NAMES[name]()
    if name.startswith(("http://", "https://")):
        return RemoteReward(name)
    known = f"{', '.join(NAMES)}, the URL of a reward service, or module:function"
    try:
        reward = object_named(name, "rewards", setting="reward", known=known)
    except UserError as error:
        text = error.text
        if error.setting != "reward":  # raised by the user's module or class
            text = f"{name!r} cannot be loaded: {type(error).__name__}: {error}"
        raise RewardError(text, setting="reward") from error
    return reward if isinstance(reward, Reward) else FunctionReward(reward)


def load_rewards(names: Sequence[str]) -> WeightedSum:
    """Return the sum of several rewards, by names as for `load_reward`, with weights as in "format=0.2".

    Raises:
        RewardError: there is no such reward, or a weight is no number.
    """
    if not names:
        raise RewardError(f"give at least one of {', '.join(NAMES)}, a URL, or module:function", setting="reward")
    pairs = [_weighted(name) for name in names]
    return WeightedSum([load_reward(name) for name, _ in pairs], [weight for _, weight in pairs])


def _weighted(text: str) -> tuple[str, float]:
    """Return a name and its weight. A URL may contain "=" itself, so only a number after it is a weight."""
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
