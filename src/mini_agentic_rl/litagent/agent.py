"""The agent, which is what is trained. It needs no more than one method that tries a task."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Generic, TypeAlias, TypeVar

from opentelemetry.sdk.trace import ReadableSpan

from ..emitter import emit_trainable_agent
from ..tracer import Tracer, get_active_tracer
from ..types import NamedResources, Rollout, RolloutMode, Span, SpanCoreFields, on_trainable_agent
from .arguments import names_argument

TaskT = TypeVar("TaskT")

RolloutResult: TypeAlias = float | Sequence[Span] | Sequence[ReadableSpan] | Sequence[SpanCoreFields] | Rollout | None
"""Result of an agent: its final reward, spans to add to the trace, a rollout with its output, or nothing."""

ROLLOUT_ARGUMENTS = ("task", "resources", "rollout")
"""Arguments that a rollout method may name, in the order in which unnamed parameters take them."""

_METHODS = ("rollout", "training_rollout", "validation_rollout")

_runner: ContextVar[Any] = ContextVar("runner", default=None)

on_trainable_agent(emit_trainable_agent)  # here, because every process that runs an agent imports this module


class LitAgent(Generic[TaskT]):
    """Base of agents.

    Override `rollout` or `rollout_async`, and the training and validation forms where those differ.

    Every method receives the arguments that it names out of `task` (the row of the data set; a `task` that is annotated
    `Task` holds the row in its `input`), `resources` (by name) and `rollout` (with its `attempt`). A sync method runs
    in a thread of its own and may block. An async method shares one event loop with all other runners of its process:
    it must never block it.

    When `RolloutConfig.timeout_seconds` have passed, an async method is cancelled. A thread cannot be: a sync method is
    given up, its attempt ends as `timeout`, and what it emits later is dropped. Under
    `LitAgentRunner(isolation="process")` either kind runs in a process of its own, which is killed then.

    One object serves all runners of a process at once: keep nothing of a rollout on `self`.

    Args:
        trained_agents: regular expression; only LLM calls of agents in whose name it is found are trained. None trains
            all. Names come from the spans (`gen_ai.agent.name`): those of the agent framework, or of an
            `operation(name=…, **{"gen_ai.agent.name": …})` around the calls.
    """

    trained_agents: str | None = None
    _trainer: Any = None

    def __init__(self, *, trained_agents: str | None = None) -> None:
        if trained_agents is not None:
            self.trained_agents = trained_agents

    def rollout(self, task: TaskT, resources: NamedResources, rollout: Rollout) -> RolloutResult:
        """Try the task once. Return None, the final reward, spans to add, or a `Rollout` with its output."""
        raise NotImplementedError(f"{type(self).__name__} must define rollout or rollout_async")

    async def rollout_async(self, task: TaskT, resources: NamedResources, rollout: Rollout) -> RolloutResult:
        """Try the task once, without ever blocking the event loop."""
        raise NotImplementedError(f"{type(self).__name__} must define rollout or rollout_async")

    def training_rollout(self, task: TaskT, resources: NamedResources, rollout: Rollout) -> RolloutResult:
        """Try a task of mode `train`, as `rollout` does."""
        return self.rollout(task, resources, rollout)

    def validation_rollout(self, task: TaskT, resources: NamedResources, rollout: Rollout) -> RolloutResult:
        """Try a task of mode `val` or `test`, or of no mode, as `rollout` does."""
        return self.rollout(task, resources, rollout)

    async def training_rollout_async(self, task: TaskT, resources: NamedResources, rollout: Rollout) -> RolloutResult:
        """Try a task of mode `train`, as `rollout_async` does."""
        return await self.rollout_async(task, resources, rollout)

    async def validation_rollout_async(self, task: TaskT, resources: NamedResources, rollout: Rollout) -> RolloutResult:
        """Try a task of mode `val` or `test`, or of no mode, as `rollout_async` does."""
        return await self.rollout_async(task, resources, rollout)

    def is_async(self) -> bool:
        """Return True if this agent defines a method that runs on the event loop.

        A class that overrides this says so itself: True rules its sync methods out, False its async ones.
        """
        kind = type(self)
        return any(
            self._defines(f"{name}_async") or inspect.iscoroutinefunction(getattr(kind, name)) for name in _METHODS
        )

    def method_for(self, mode: RolloutMode | None) -> Callable[..., Any]:
        """Return the method that runs a rollout of this mode: the most specific override, async first.

        A rollout without a mode is no training: it runs the same method as one of mode `val`.

        Raises:
            NotImplementedError: the class overrides none that fits.
        """
        endings = ["_async", ""]
        if type(self).is_async is not LitAgent.is_async:
            endings = ["_async"] if self.is_async() else [""]
        specific = "training_rollout" if mode == "train" else "validation_rollout"
        for name in (f"{base}{ending}" for base in (specific, "rollout") for ending in endings):
            if self._defines(name):
                method: Callable[..., Any] = getattr(self, name)
                return method
        raise NotImplementedError(f"{type(self).__name__} must define rollout or rollout_async (mode {mode})")

    def _defines(self, name: str) -> bool:
        return getattr(type(self), name) is not getattr(LitAgent, name)

    def needs_resources(self, mode: RolloutMode | None) -> bool:
        """Return True if the method for this mode asks for resources."""
        return names_argument(self.method_for(mode), "resources", ROLLOUT_ARGUMENTS)

    @property
    def trainer(self) -> Any:
        """Trainer that runs this agent.

        Raises:
            ValueError: no trainer does.
        """
        if self._trainer is None:
            raise ValueError("the agent has no trainer: it is set by Trainer.fit")
        return self._trainer

    def get_trainer(self) -> Any:
        """Return `trainer`."""
        return self.trainer

    def set_trainer(self, trainer: Any) -> None:
        """Set the trainer; the trainer calls it."""
        self._trainer = trainer

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_trainer": None}  # a trainer holds the model: it does not go where the agent is sent

    @property
    def tracer(self) -> Tracer:
        """Tracer of the running rollout.

        Raises:
            ValueError: called outside a rollout.
        """
        tracer = get_active_tracer()
        if tracer is None:
            raise ValueError("the agent has a tracer only while a rollout runs")
        return tracer

    def get_tracer(self) -> Tracer:
        """Return `tracer`."""
        return self.tracer

    @property
    def runner(self) -> Any:
        """Runner of the running rollout.

        Raises:
            ValueError: called outside a rollout.
        """
        runner = _runner.get()
        if runner is None:
            raise ValueError("the agent has a runner only inside Runner.run_context")
        return runner

    def get_runner(self) -> Any:
        """Return `runner`."""
        return self.runner

    def set_runner(self, runner: Any) -> None:
        """Set the runner, for the calling task alone; the runner calls it."""
        _runner.set(runner)
