"""Helpers for algorithms of one's own: endless batches of a data set, and the store or the proxy as an argument."""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

from ..types import Dataset
from .base import Algorithm

T = TypeVar("T")

Method = Callable[..., Awaitable[Any]]


def batch_iter_over_dataset(dataset: Dataset[T], batch_size: int) -> Iterator[Sequence[T]]:
    """Yield batches of `batch_size` rows for ever, in a new order for each pass; all rows where there are fewer.

    A batch that begins at the end of a pass is filled up from the next one, with rows that it does not hold yet.

    Raises:
        ValueError: `batch_size` is less than 1, or the data set is empty.
    """
    if batch_size < 1 or len(dataset) == 0:
        raise ValueError(f"batch_size={batch_size} of {len(dataset)} rows: both must be 1 or more")
    size, batch = min(batch_size, len(dataset)), list[int]()
    while True:
        order = deque(random.sample(range(len(dataset)), len(dataset)))
        while order:
            index = order.popleft()
            if index in batch:  # of the last pass: its turn in this one comes later
                order.append(index)
                continue
            batch.append(index)
            if len(batch) == size:
                yield [dataset[chosen] for chosen in batch]
                batch.clear()


def with_store(method: Method) -> Method:
    """Give an async method of an algorithm its store as the first argument after `self`."""

    @functools.wraps(method)
    async def call(self: Algorithm, *args: Any, **kwargs: Any) -> Any:
        return await method(self, self.get_store(), *args, **kwargs)

    return call


def with_llm_proxy(required: bool = False, auto_start: bool = True) -> Callable[[Method], Method]:
    """Give an async method of an algorithm its LLM proxy as the first argument after `self`; None where it has none.

    Args:
        required: Raise a ValueError where it has none.
        auto_start: Start a proxy that does not run yet, and stop it after the call.
    """

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        async def call(self: Algorithm, *args: Any, **kwargs: Any) -> Any:
            proxy = self.get_llm_proxy()
            if proxy is None and required:
                raise ValueError(f"{type(self).__name__} needs an LLM proxy: Trainer(llm_proxy=…), or set_llm_proxy")
            if proxy is None or not auto_start or proxy.is_running():
                return await method(self, proxy, *args, **kwargs)
            await proxy.start()
            try:
                return await method(self, proxy, *args, **kwargs)
            finally:
                await proxy.stop()

        return call

    return decorate
