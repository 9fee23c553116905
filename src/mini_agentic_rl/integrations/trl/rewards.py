"""TRL's reward functions over one completion: called as TRL calls them, weighted, summed.

Every function gets `prompts`, `completions` and `completion_ids` with one item each, a list for each column of the row,
`environments` where there is one, and `log_metric` and `log_extra`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ...emitter import emit_annotation
from ...environments import REWARD
from ...errors import UserError
from ...rewards import Reward, WeightedSum

Function = Callable[..., Any]


class TRLRewards:
    """Scores completions, each by all functions.

    Args:
        functions: a reward function of TRL's, or several. Rewards of this package are such functions too.
        weights: a factor for each; without them all count the same.

    Raises:
        UserError: one is no function, or asks for what only TRL's trainer has; or there are not as many weights.
    """

    def __init__(self, functions: Function | Sequence[Function] = (), weights: Sequence[float] | None = None) -> None:
        given = [functions] if callable(functions) else list(functions)
        for function in given:
            _check(function)
        if weights is not None and len(weights) != len(given):
            raise UserError(f"{len(weights)} weights for {len(given)} reward functions", setting="reward_weights")
        called = [function if isinstance(function, Reward) else _Called(function) for function in given]
        self._sum = WeightedSum(called, weights) if called else None
        self.wants_ids = any("completion_ids" in inspect.signature(function).parameters for function in given)
        """True where a function names `completion_ids`."""

    def __bool__(self) -> bool:
        return self._sum is not None

    def score(
        self, prompt: Any, completion: Any, columns: Mapping[str, Any], *, completion_ids: Sequence[int] | None = None
    ) -> dict[str, float]:
        """Return the sum, as `reward`, and each function's own number; nothing where none of them gave any, or
        one failed.

        Args:
            prompt: text or messages.
            completion: text or messages.
            columns: the row beside its prompt, and what else the functions may ask for.
        """
        given: dict[str, Any] = {
            name: [value] for name, value in columns.items() if name not in ("prompt", "completion")
        }
        given |= {"completion_ids": [completion_ids], "log_metric": _log_metric, "log_extra": _log_extra}
        if self._sum is None:
            return {}
        (total,), parts = self._sum.sums_and_parts([completion], [prompt], given)
        if total is None:
            return {}
        return {name: value for name, (value,) in parts.items() if value is not None} | {REWARD: total}


class _Called(Reward):
    """A function, called as TRL calls it."""

    def __init__(self, function: Function) -> None:
        super().__init__(_name_of(function))
        self._function = function

    def score_columns(
        self, completions: Sequence[Any], prompts: Sequence[Any] | None, columns: Mapping[str, Any]
    ) -> Sequence[float | None]:
        result = self._function(prompts=prompts, completions=completions, **columns)
        if inspect.iscoroutine(result):
            with ThreadPoolExecutor(1, "reward") as thread:
                result = thread.submit(asyncio.run, result).result()
        return self.numbers_of(result, len(completions))


def _check(function: Any) -> None:
    if isinstance(function, str) or not callable(function) or hasattr(function, "parameters"):
        raise UserError(
            f"{str(function)[:80]!r} is no reward function: serve a reward model as a service, and call it through "
            "RemoteReward(url)",
            setting="reward_funcs",
        )
    named = inspect.signature(function).parameters
    if "trainer_state" in named and named["trainer_state"].default is inspect.Parameter.empty:
        raise UserError(
            f"{_name_of(function)} asks for trainer_state, which only TRL's trainer has: give it a default",
            setting="reward_funcs",
        )


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _log_metric(name: str, value: float) -> None:
    emit_annotation({"metric": {str(name): float(value)}})


def _log_extra(column: str, values: Sequence[Any]) -> None:
    emit_annotation({"extra": {str(column): str(values[0]) if values else ""}})
