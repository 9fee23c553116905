"""`@algo`: an algorithm from a function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ..litagent import arguments_for
from ..metrics import MetricsLogger
from ..types import Dataset
from .base import Algorithm

_OFFERED = ("store", "train_dataset", "val_dataset", "llm_proxy", "adapter", "initial_resources", "logger")


class FunctionalAlgorithm(Algorithm):
    """Calls the function with the arguments that it names out of `store`, `train_dataset`, `val_dataset`,
    `llm_proxy`, `adapter`, `initial_resources` and `logger`; all of them if it takes `**kwargs`. What the run has none
    of is None. Still callable as the function.

    Raises:
        TypeError: the function asks for an argument of another name.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        arguments_for(function, dict.fromkeys(_OFFERED), by_position=False)
        self._function = function
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def is_async(self) -> bool:
        """Return True if the function is a coroutine function."""
        return inspect.iscoroutinefunction(self._function)

    def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> Any:
        """Call the function; what an async one returns is to be awaited.

        Raises:
            ValueError: the function asks for a store, and there is none.
            TypeError: there is a data set that the function does not take.
        """
        offered = {
            "store": self._get("store"),
            "train_dataset": train_dataset,
            "val_dataset": val_dataset,
            "llm_proxy": self._get("llm_proxy"),
            "adapter": self._get("adapter"),
            "initial_resources": self.get_initial_resources(),
            "logger": self._get("logger") or MetricsLogger(),
        }
        if "store" in inspect.signature(self._function).parameters:
            offered["store"] = self.get_store()
        positional, keywords = arguments_for(self._function, offered, by_position=False)
        for name, dataset in (("train_dataset", train_dataset), ("val_dataset", val_dataset)):
            if dataset is not None and name not in keywords:
                raise TypeError(f"{self._function.__qualname__} takes no {name}, but one was given")
        return self._function(*positional, **keywords)


def algo(function: Callable[..., Any]) -> FunctionalAlgorithm:
    """Make an algorithm of a sync or async function; a sync one runs in a thread of its own.

    Raises:
        TypeError: the function names an argument that cannot be given.
    """
    return FunctionalAlgorithm(function)
