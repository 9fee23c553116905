"""Baselines of sessions: what a reward is compared with, where it stands by itself.

Let r_1 … r_G be the rewards of the sessions of one key in a step, m the running mean of the rewards of that key before
the step, and n the weight of that memory, at most N. The baseline of r_i has nothing of r_i itself, so that the policy
gradient stays unbiased (as with RLOO; Kool et al. 2019):

    b_i = (n m + sum over j != i of r_j) / (n + G - 1)        A_i = (r_i - b_i) / s

and s is the standard deviation of rewards over all keys, so far. A session alone is compared with what its key earned
before (n = its memory, G = 1: the running baseline of REINFORCE; Williams 1992); sessions of a new key with each other
(n = 0); one alone with a new key with nothing: it has to wait. Numbers of a comparison are compared within it alone,
(r - mean) / std, as GRPO does.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from ...algorithm.losses import Floats

_MEMORY: Final = 16.0
"""N: rewards that the mean of a key remembers, about."""
_OF_ALL: Final = 256.0
"""The same for the standard deviation over all keys."""
_KEYS: Final = 65_536
"""Keys that are remembered; the one seen longest ago is forgotten first."""


class Baselines:
    """Running means by key, and the running standard deviation of all."""

    def __init__(self) -> None:
        self._means: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._all = (0.0, 0.0, 0.0)
        """Mean, variance, and weight of both."""

    def expected(self, key: str, others: Sequence[float]) -> float | None:
        """Return the baseline of a reward beside others of its key; None where there is nothing to compare it with."""
        mean, weight = self._means.get(key, (0.0, 0.0))
        total = weight + len(others)
        return None if total == 0 else (weight * mean + sum(others)) / total

    def deviation(self, rewards: Sequence[float]) -> float:
        """Return the standard deviation of all rewards, these among them."""
        mean, variance, weight = self._all
        values: Floats = np.array(rewards, np.float64)
        total = weight + values.size
        if total == 0:
            return 0.0
        new = (weight * mean + values.sum()) / total
        spread = weight * (variance + (mean - new) ** 2) + ((values - new) ** 2).sum()
        return math.sqrt(max(0.0, float(spread) / total))

    def add(self, key: str, reward: float) -> None:
        """Remember a reward."""
        mean, weight = self._means.pop(key, (0.0, 0.0))
        weight = min(weight, _MEMORY - 1)
        self._means[key] = ((weight * mean + reward) / (weight + 1), weight + 1)
        if len(self._means) > _KEYS:
            self._means.popitem(last=False)
        mean, variance, weight = self._all
        weight = min(weight, _OF_ALL - 1)
        new = (weight * mean + reward) / (weight + 1)
        variance = (weight * (variance + (mean - new) ** 2) + (reward - new) ** 2) / (weight + 1)
        self._all = (new, variance, weight + 1)

    def state(self) -> dict[str, Any]:
        """Return all of it as JSON."""
        return {"keys": [[key, *values] for key, values in self._means.items()], "all": list(self._all)}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Baselines:
        """Return what `state` gave."""
        made = cls()
        made._means.update((str(key), (float(mean), float(weight))) for key, mean, weight in state["keys"])
        mean, variance, weight = map(float, state["all"])
        made._all = (mean, variance, weight)
        return made
