"""Environments, the agent that a trainer runs in one, and recipes.

An `Environment` has tasks, and runs rollouts against an endpoint that end in a reward. Families of `Episodes` are
environments, and `integrations.environments` wraps those of other packages. Users write a class with two methods.

An environment that blocks runs in its own thread per rollout. An event loop's executor has few threads, and the program
waits for them at exit, so an environment that hangs there would block the others.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import math
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

from ..datasets import Row
from ..emitter import emit_reward
from ..litagent import LitAgent
from ..types import Hook, NamedResources, Rollout
from .endpoint import Endpoint, endpoint_of, find_llm


@dataclass(frozen=True)
class Demonstrations:
    """Demonstrations of tasks, for training by imitation."""

    demonstrate: Callable[[Mapping[str, Any]], list[dict[str, Any]]]
    """Returns the OpenAI messages of a solved task."""
    tools: Callable[[Mapping[str, Any]], Sequence[dict[str, Any]]]
    """Returns the tools that the agent sends with every call of a task."""
    can_show: Callable[[Mapping[str, Any]], bool]
    """Returns True for a task that can be demonstrated."""
    besides: Sequence[list[dict[str, Any]]] = ()
    """Conversations without a task that are mixed in, so that the model does not unlearn them."""


@dataclass(frozen=True)
class Recipe:
    """An agent, the hooks that score it, and how its tasks are demonstrated."""

    agent: LitAgent[Any]
    hooks: Sequence[Hook] = ()
    demonstrations: Demonstrations | None = None


T = TypeVar("T")


class OwnThread:
    """Runs calls one after another on its own daemon thread, within `async with`."""

    def __init__(self, name: str) -> None:
        """`name` is the name of the thread."""
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    async def __aenter__(self) -> OwnThread:
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._calls.put(None)

    async def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Return the result of a function. If the caller is cancelled, the call goes on and its result is dropped.

        Raises:
            Exception: whatever the function raised; StopIteration, SystemExit and the like as a RuntimeError.
        """
        future: Future[T] = Future()
        self._calls.put((future, partial(contextvars.copy_context().run, function, *args, **kwargs)))
        return await asyncio.wrap_future(future)

    def last(self, function: Callable[[], Any]) -> None:
        """Call a function after all others, without waiting for it; its errors are dropped."""
        self._calls.put((Future(), function))

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            future, call = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except StopIteration as error:
                future.set_exception(RuntimeError(f"the call raised StopIteration: {error}"))
            except Exception as error:  # raised in the waiting task
                future.set_exception(error)
            except BaseException as error:  # it would end the event loop
                future.set_exception(RuntimeError(f"the call raised {type(error).__name__}: {error}"))


REWARD = "reward"
"""Name of the reward that is trained."""


@dataclass(frozen=True)
class Outcome:
    """The result of a rollout."""

    rewards: Mapping[str, float]
    """`reward`, which is trained, and further metrics."""
    output: Any = None
    """Output that is stored with the rollout."""


@runtime_checkable
class Environment(Protocol):
    """A world with tasks. One object serves all rollouts concurrently, so it holds no state of a rollout."""

    def tasks(self, split: str, size: int, seed: int = 0) -> Sequence[Row]:
        """Return at most `size` tasks of "train", "val" or "test"; the splits share no task.

        A task is a mapping of JSON values. Its `question` identifies it when two runs are compared.
        """
        ...

    async def rollout(self, task: Mapping[str, Any], endpoint: Endpoint) -> Outcome:
        """Let the model behind an OpenAI-compatible endpoint work on a task, and return the outcome.

        May also be a normal function, which may block: it is then called in its own thread.
        """
        ...


class EnvironmentAgent(LitAgent[Any]):
    """Lets the model work on tasks of an environment, and emits the rewards."""

    def __init__(self, environment: Environment) -> None:
        """`environment` is shared by all rollouts."""
        super().__init__()
        self.environment = environment

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Rollout) -> None:
        """Run one rollout of the environment.

        Raises:
            ValueError: the resources have no LLM, or several and none named "llm"; or the environment gave no reward,
                or one that is not finite.
            TypeError: the environment returned no `Outcome`.
            Exception: whatever the environment raises.
        """
        endpoint = endpoint_of(find_llm(resources), rollout)
        play = self.environment.rollout
        outcome: Any
        if inspect.iscoroutinefunction(play):
            outcome = await play(task, endpoint)
        else:
            async with OwnThread("environment") as thread:  # it may block
                outcome = await thread.call(play, task, endpoint)
            if inspect.isawaitable(outcome):
                outcome = await outcome
        if not isinstance(outcome, Outcome):
            raise TypeError(f"the environment returned a {type(outcome).__name__}, not an Outcome with rewards")
        if outcome.rewards.get(REWARD) is None:
            raise ValueError(f"the environment gave no {REWARD!r}, only {sorted(outcome.rewards)}")
        rewards = {name: float(value) for name, value in outcome.rewards.items() if value is not None}
        for name, value in rewards.items():
            if not math.isfinite(value):
                raise ValueError(f"the environment's {name!r} is {value}, and not finite")
        rollout.output = outcome.output
        emit_reward(rewards, primary_key=REWARD, final=True)
