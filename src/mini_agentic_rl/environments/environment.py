"""Environments, the agent that a trainer runs in one, and recipes.

An `Environment` has tasks, and runs a rollout against an endpoint that ends in a reward. `EpisodeEnvironment` plays the
tasks of a family of episodes, and `integrations.environments` has those of other packages. Your own is a class with
these two methods.

An environment that blocks runs in a thread of its own per rollout. The threads of an event loop's executor are few, and
the program waits for them at its end, so an environment that hangs there would block the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import math
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, TypeVar, runtime_checkable

from ..datasets import Row
from ..emitter import emit_reward
from ..litagent import LitAgent
from ..types import Hook, NamedResources, Rollout
from .endpoint import Endpoint, endpoint_of, find_llm


@dataclass(frozen=True)
class Demonstrations:
    """Demonstrations of tasks done well, for training by imitation."""

    demonstrate: Callable[[Mapping[str, Any]], list[dict[str, Any]]]
    """Returns the OpenAI messages of a task done well."""
    tools: Callable[[Mapping[str, Any]], Sequence[dict[str, Any]]]
    """Returns the tools that the agent sends with every call about a task."""
    can_show: Callable[[Mapping[str, Any]], bool]
    """Returns True for a task that says how it is done."""
    besides: Sequence[list[dict[str, Any]]] = ()
    """Conversations that are no task, to be mixed in: what a model should still be able to say."""


@dataclass(frozen=True)
class Recipe:
    """An agent, the hooks that score it, and how its tasks are demonstrated."""

    agent: LitAgent[Any]
    hooks: Sequence[Hook] = ()
    demonstrations: Demonstrations | None = None
    """None where nobody wrote any."""


T = TypeVar("T")


class OwnThread:
    """Runs calls one after another on one thread, from `async with` until its end or the end of a call that hangs."""

    def __init__(self, name: str) -> None:
        """`name` is the thread's."""
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    async def __aenter__(self) -> OwnThread:
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._calls.put(None)

    async def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Return what the function returns; where the caller is cancelled meanwhile, the call goes on unheard.

        Raises:
            Exception: whatever the function raised; a StopIteration as a RuntimeError.
        """
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        done: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            result: Any = None
            failure: BaseException | None = None
            try:
                result = context.run(function, *args, **kwargs)
            except BaseException as error:  # handed to the task that waits
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(_settle, done, result, failure)

        self._calls.put(run)
        return await done

    def last(self, function: Callable[[], Any]) -> None:
        """Call a function after all others, without waiting for it or for what it raises."""

        def run() -> None:
            with contextlib.suppress(Exception):
                function()

        self._calls.put(run)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _settle(done: asyncio.Future[Any], result: Any, failure: BaseException | None) -> None:
    if done.done():
        return
    if failure is None:
        done.set_result(result)
    elif isinstance(failure, Exception) and not isinstance(failure, StopIteration):
        done.set_exception(failure)
    else:
        done.set_exception(RuntimeError(f"the call raised {type(failure).__name__}: {failure}"))


REWARD = "reward"
"""The name of the reward that is trained."""
DEFAULT_SIZE = 1000
"""Tasks that a job asks for where no number is given."""


@dataclass(frozen=True)
class Outcome:
    """The end of a rollout."""

    rewards: Mapping[str, float]
    """`reward`, which is trained, and what else was counted."""
    output: Any = None
    """Output that the rollout's record keeps."""


@runtime_checkable
class Environment(Protocol):
    """A world with tasks. One object serves all rollouts at once: it keeps nothing of one."""

    def tasks(self, split: str, size: int, seed: int = 0) -> Sequence[Row]:
        """Return at most `size` tasks of "train", "val" or "test", different ones in each.

        A task is a mapping of JSON values. Its `question` tells it from others where two runs are compared.
        """
        ...

    async def rollout(self, task: Mapping[str, Any], endpoint: Endpoint) -> Outcome:
        """Let the model behind an OpenAI-compatible endpoint work on a task, and return how that ended.

        It may also be an ordinary function, which may block: it is then called in a thread of its own.
        """
        ...


class EnvironmentAgent(LitAgent[Any]):
    """Lets the model work on tasks of an environment, and emits the rewards that this gives."""

    def __init__(self, environment: Environment) -> None:
        """`environment` is shared by all rollouts."""
        super().__init__()
        self.environment = environment

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Rollout) -> None:
        """Run one rollout of the environment.

        Raises:
            ValueError: the resources hold no LLM, or several and none named "llm"; or the environment gave no reward,
                or one that is no finite number.
            TypeError: the environment returned no `Outcome`.
            Exception: whatever the environment raises.
        """
        outcome = await self._play(task, endpoint_of(find_llm(resources), rollout))
        rewards = _checked(outcome)
        rollout.output = outcome.output
        emit_reward(rewards, primary_key=REWARD, final=True)

    async def _play(self, task: Any, endpoint: Endpoint) -> Any:
        play = self.environment.rollout
        if inspect.iscoroutinefunction(play):
            return await play(task, endpoint)
        async with OwnThread("environment") as thread:  # it may block
            outcome: Any = await thread.call(play, task, endpoint)
        return await outcome if inspect.isawaitable(outcome) else outcome


def _checked(outcome: Any) -> dict[str, float]:
    """Return the rewards of an outcome.

    Raises:
        TypeError: it is none.
        ValueError: there is no reward, or one is no finite number.
    """
    if not isinstance(outcome, Outcome):
        raise TypeError(f"the environment returned a {type(outcome).__name__}, not an Outcome with rewards")
    if outcome.rewards.get(REWARD) is None:
        raise ValueError(f"the environment gave no {REWARD!r}, only {sorted(outcome.rewards)}")
    rewards = {name: float(value) for name, value in outcome.rewards.items() if value is not None}
    wrong = next((name for name, value in rewards.items() if not math.isfinite(value)), None)
    if wrong is not None:
        raise ValueError(f"the environment's {wrong!r} is {rewards[wrong]}, and not finite")
    return rewards
