"""`@algo`: an algorithm from a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..types import Dataset
from .base import Algorithm


class FunctionalAlgorithm(Algorithm):
    """Calls the function with the arguments that it names out of `store`, `initial_resources`, `train_dataset`,
    `val_dataset` and `logger`. Still callable as the function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function
        known = {"store", "initial_resources", "train_dataset", "val_dataset", "logger"}
        unknown = [name for name in inspect.signature(function).parameters if name not in known]
        if unknown:
            raise TypeError(
                f"@algo cannot give {function.__name__} an argument named {unknown[0]!r}; "
                f"it can give {', '.join(sorted(known))}"
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> Any:
        """Call the function, and await what it returns if it is a coroutine."""
        available = {
            "store": self.context.store,
            "initial_resources": self.context.initial_resources,
            "train_dataset": train_dataset,
            "val_dataset": val_dataset,
            "logger": self.context.logger,
        }
        names = inspect.signature(self._function).parameters
        result = self._function(**{name: available[name] for name in names})
        return await result if inspect.isawaitable(result) else result


def algo(function: Callable[..., Any]) -> FunctionalAlgorithm:
    """An algorithm from a sync or async function.

    Raises:
        TypeError: the function names an argument that cannot be given.
    """
    return FunctionalAlgorithm(function)
