"""Reward functions by name, as commands and settings give them."""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from .accuracy import AccuracyReward
from .base import Reward, RewardError
from .combine import NormalisedSum, WeightedSum
from .format import FormatReward
from .function import FunctionReward
from .remote import RemoteReward
from .steps import StepReward
from .tool_use import ToolUseReward

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
    """One of `NAMES`, the URL of a reward service, or `module:name` of a reward function, a reward or its class.

    Raises:
        RewardError: there is no such reward.
    """
    if name in NAMES:
        return NAMES[name]()
    if name.startswith(("http://", "https://")):
        return RemoteReward(name)
    module_name, _, attribute = name.partition(":")
    if not attribute:
        raise RewardError(
            f"--reward {name!r} is unknown: give {', '.join(NAMES)}, the URL of a reward service, or module:function"
        )
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # the module beside which the command is run, as with `python -m`
    try:
        found: Any = getattr(importlib.import_module(module_name), attribute)
        if isinstance(found, type):
            found = found()
    except Exception as error:  # the user's module may fail in any way while it is imported
        raise RewardError(f"--reward {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    return found if isinstance(found, Reward) else FunctionReward(found)


def load_rewards(names: Sequence[str], *, normalise: bool = False) -> WeightedSum:
    """The sum of several rewards: names as for `load_reward`, with a weight as in "format=0.2".

    Raises:
        RewardError: there is no such reward, or a weight is no number.
    """
    if not names:
        raise RewardError(f"--reward: give at least one of {', '.join(NAMES)}, a URL, or module:function")
    pairs = [_weighted(name) for name in names]
    functions, weights = [load_reward(name) for name, _ in pairs], [weight for _, weight in pairs]
    return NormalisedSum(functions, weights) if normalise else WeightedSum(functions, weights)


def _weighted(text: str) -> tuple[str, float]:
    """A name and its weight. A URL may hold "=" itself, so only what reads as a number is a weight."""
    name, separator, number = text.rpartition("=")
    if not separator:
        return text, 1.0
    try:
        weight = float(number)
    except ValueError:
        if "://" in text:
            return text, 1.0
        raise RewardError(f"--reward {text}: the weight {number!r} is no number") from None
    if not math.isfinite(weight):
        raise RewardError(f"--reward {text}: the weight must be finite")
    return name, weight
