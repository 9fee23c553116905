"""The base of all algorithms, `@algo`, which makes one of a function, and helpers for algorithms of your own.

An algorithm enqueues rollouts, reads their results, and changes the resources that agents use. It never runs an agent
and never speaks HTTP: the store is its only connection to the runners.
"""

from __future__ import annotations

import functools
import inspect
import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias, TypeVar

from ..adapter import TraceAdapter
from ..config import Settings
from ..errors import UserError
from ..litagent import arguments_for
from ..metrics import MetricsLogger
from ..processes import in_daemon_thread
from ..store import LightningStore
from ..types import Dataset, NamedResources
from .settings import OnFailure

if TYPE_CHECKING:
    from ..policy import Launch
    from .rollouts import Evaluation

T = TypeVar("T")
Method: TypeAlias = Callable[..., Awaitable[Any]]

ResultKind: TypeAlias = Literal["adapter", "adapters", "prompt"]
"""Kinds of results that an algorithm may leave behind: trained weights, those of several adapters by name, or a prompt
template."""


class Checkpoints(Protocol):
    """Storage of a run: checkpoints, results, logs and answers (`trainer.RunFolder`)."""

    def save_checkpoint(self, step: int, write: Callable[[Path], None], keep: Collection[int] = ()) -> Path | None:
        """Keep the checkpoint that `write` puts into an empty folder, and those of the steps in `keep`; return None if
        the disk is full."""

    def checkpoints(self) -> Sequence[tuple[int, Path]]:
        """(step, folder) of every whole checkpoint, oldest first."""

    def latest_checkpoint(self) -> tuple[int, Path] | None:
        """(step, folder) of the newest whole checkpoint."""

    def save_epoch(self, epoch: int, write: Callable[[Path], None]) -> None:
        """Keep the trained weights after so many passes over the tasks."""

    def save_result(self, kind: ResultKind, write: Callable[[Path], None]) -> Path:
        """Keep the result of the run."""

    def save_answers(self, rows: Sequence[Mapping[str, Any]], keep: Collection[str]) -> None:
        """Keep the answers of a measurement (`answers.py`), and of earlier ones those of the names in
        `keep`."""


@dataclass
class AlgorithmContext:
    """All that the trainer gives an algorithm to work with."""

    store: LightningStore
    logger: MetricsLogger = field(default_factory=MetricsLogger)
    checkpoints: Checkpoints | None = None
    resume: bool = False
    """Go on from the latest checkpoint, if there is one."""
    initial_resources: NamedResources = field(default_factory=dict)
    n_runners: int = 1
    """Number of rollouts that can run at once."""
    adapter: TraceAdapter[Any] | None = None
    """Turns the spans of a rollout into training data."""
    llm_proxy: Any | None = None
    """The gateway over an upstream model, where the trainer was given one."""
    num_epochs: int | None = None
    """The trainer's passes over the training tasks; None leaves it to the algorithm."""
    on_failure: OnFailure | None = None
    """The trainer's treatment of failed rollouts; None leaves it to the algorithm."""
    trained_agents: str | None = None
    """`LitAgent.trained_agents` of the agent: a regular expression over the names of those to train; None: all."""


class Algorithm(ABC):
    """Subclasses define `run`, sync or async, with the parameters `train_dataset` and `val_dataset`.

    A trainer fills in the rest by `bind`. Without a trainer, the setters do: `set_store` is the one that is needed.
    """

    honours: ClassVar[frozenset[str]] = frozenset()
    """The names among `num_epochs` and `on_failure` that it follows; the trainer warns about the others."""

    evaluations: Sequence[Evaluation] = ()
    """Measurements of the run, in order; a report shows conversations of the last."""

    _given: Mapping[str, Any] = MappingProxyType({})
    """Fields of the context so far."""
    _given_by_setters: Mapping[str, Any] = MappingProxyType({})
    """Fields given by setters. They fill the gaps of the context of every run."""
    _trainer: Any = None

    def follow(self, launch: Launch) -> None:
        """Be another rank of the run that rank 0 runs, until it ends.

        Raises:
            UserError: the algorithm has no use for ranks.
        """
        raise UserError(f"{type(self).__name__} runs as one process: start it without torchrun")

    @property
    def context(self) -> AlgorithmContext:
        """The context that the trainer gave.

        Raises:
            ValueError: the algorithm has no store.
        """
        if "store" not in self._given:
            raise ValueError(
                f"{type(self).__name__} has no store yet: run it with Trainer(algorithm=…).fit(…), or call set_store"
            )
        return AlgorithmContext(**self._given)

    def bind(self, context: AlgorithmContext) -> None:
        """Take over the trainer's context, before `run`; values that were set before fill its gaps."""
        given = vars(context)
        self._given = given | {name: value for name, value in self._given_by_setters.items() if not given[name]}

    def set_store(self, store: LightningStore) -> None:
        """Run on this store."""
        self._set("store", store)

    def get_store(self) -> LightningStore:
        """Return the store that runners watch.

        Raises:
            ValueError: the algorithm has no store.
        """
        return self.context.store

    def set_adapter(self, adapter: TraceAdapter[Any]) -> None:
        """Read spans with this adapter."""
        self._set("adapter", adapter)

    def get_adapter(self) -> TraceAdapter[Any]:
        """Return the adapter that reads spans.

        Raises:
            ValueError: none was given.
        """
        adapter: TraceAdapter[Any] | None = self._given.get("adapter")
        if adapter is None:
            raise ValueError(f"{type(self).__name__} has no adapter: give Trainer(adapter=…), or call set_adapter")
        return adapter

    def set_llm_proxy(self, llm_proxy: Any | None) -> None:
        """Use this gateway over an upstream model."""
        self._set("llm_proxy", llm_proxy)

    def get_llm_proxy(self) -> Any | None:
        """Return the gateway over an upstream model; None where there is none."""
        return self._given.get("llm_proxy")

    def set_initial_resources(self, resources: NamedResources) -> None:
        """Begin with these resources."""
        self._set("initial_resources", dict(resources))

    def get_initial_resources(self) -> NamedResources | None:
        """Return the resources to begin with; None where there are none."""
        return self._given.get("initial_resources") or None

    def set_trainer(self, trainer: Any) -> None:
        """Take note of the trainer, which calls this itself."""
        self._trainer = trainer

    def get_trainer(self) -> Any:
        """Return the trainer that runs this algorithm.

        Raises:
            ValueError: none does.
        """
        if self._trainer is None:
            raise ValueError(f"{type(self).__name__} has no trainer: it is set by Trainer.fit")
        return self._trainer

    def is_async(self) -> bool:
        """Return True if `run` is a coroutine function."""
        return inspect.iscoroutinefunction(self.run)

    @abstractmethod
    def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> Any:
        """Run the whole algorithm; the run ends when this returns."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Do the same as `run`."""
        return self.run(*args, **kwargs)

    async def execute(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> Any:
        """Take `run` to its end, from inside an event loop that stays free for others.

        A sync `run` gets a thread of its own, in which it may block and may call `asyncio.run`. When this is cancelled,
        such a thread is given up, not ended: it does not keep the process alive.
        """

        def call() -> Any:
            return self.run(train_dataset=train_dataset, val_dataset=val_dataset)

        result = call() if self.is_async() else await in_daemon_thread(call, type(self).__name__)
        return await result if inspect.isawaitable(result) else result

    @property
    def configuration(self) -> Mapping[str, Any]:
        """Settings as JSON values, in groups: a run folder keeps them, and a run is resumed only under the same."""
        settings = getattr(self, "settings", None)
        return settings.model_dump(mode="json") if isinstance(settings, Settings) else {}

    def rows_to_keep(self, checkpoint: Path | None) -> int | None:
        """Return the number of rows of metrics that a run resumed from a checkpoint keeps; None keeps all."""
        return None

    @property
    def summary(self) -> Mapping[str, Any]:
        """Results worth keeping after the run: `accuracy`, `seconds`, `untrained` ..."""
        return {}

    def _set(self, name: str, value: Any) -> None:
        self._given = {**self._given, name: value}
        self._given_by_setters = {**self._given_by_setters, name: value}


_OFFERED = ("store", "train_dataset", "val_dataset", "llm_proxy", "adapter", "initial_resources", "logger")


class FunctionalAlgorithm(Algorithm):
    """Calls the function with the arguments that it names out of `store`, `train_dataset`, `val_dataset`,
    `llm_proxy`, `adapter`, `initial_resources` and `logger`; all of them if it takes `**kwargs`. What the run has none
    of is None. Still callable as the function.

    Raises:
        TypeError: the function has a parameter of another name.
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
        """Call the function; an async one returns a coroutine.

        Raises:
            ValueError: the function has a parameter `store`, and there is none.
            TypeError: a data set was given that the function does not take.
        """
        offered = {
            "store": self._given.get("store"),
            "train_dataset": train_dataset,
            "val_dataset": val_dataset,
            "llm_proxy": self._given.get("llm_proxy"),
            "adapter": self._given.get("adapter"),
            "initial_resources": self.get_initial_resources(),
            "logger": self._given.get("logger") or MetricsLogger(),
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
