"""Agents: the class `LitAgent`, and decorators that make an agent of a function.

The first parameter of a decorated function is named `task`. The names of the others select their values: `llm` is an
endpoint, `prompt_template` a prompt, `resources` all resources by name, `rollout` the rollout. If the resources hold
several endpoints or prompts, the function gets the one named like the parameter, else the first.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Generic, TypeAlias, TypeVar, overload

from opentelemetry.sdk.trace import ReadableSpan

from ..emitter import emit_trainable_agent
from ..tracer import Tracer, get_active_tracer
from ..types import (
    LLM,
    AttemptedRollout,
    NamedResources,
    PromptTemplate,
    ProxyLLM,
    Resource,
    Rollout,
    RolloutMode,
    Span,
    SpanCoreFields,
    on_trainable_agent,
)
from .arguments import arguments_for, as_annotated, names_argument

TaskT = TypeVar("TaskT")

RolloutResult: TypeAlias = float | Sequence[Span] | Sequence[ReadableSpan] | Sequence[SpanCoreFields] | Rollout | None
"""Result of an agent: its final reward, spans to add to the trace, a rollout with its output, or None."""

_ARGUMENTS = ("task", "resources", "rollout")
"""Arguments of a rollout method, in the order of its positional parameters."""

_METHODS = ("rollout", "training_rollout", "validation_rollout")

_runner: ContextVar[Any] = ContextVar("runner", default=None)

on_trainable_agent(emit_trainable_agent)  # here, because every process that runs an agent imports this module


class LitAgent(Generic[TaskT]):
    """Base of agents.

    Override `rollout` or `rollout_async`, and the training and validation methods if they differ.

    A method names the arguments that it wants: `task` (the row of the data set; a parameter annotated `Task` gets a
    `Task` with the row as its `input`), `resources` (by name) and `rollout` (with its `attempt`). A sync method runs in
    a thread and may block. An async method shares one event loop with all other runners of its process and must never
    block it.

    After `RolloutConfig.timeout_seconds` an async method is cancelled. A sync method is abandoned: its attempt ends as
    `timeout`, and what it emits later is dropped.

    One object serves all runners of a process at once: store nothing of a rollout on `self`.

    Args:
        trained_agents: regular expression that is searched in the names of agents; only LLM calls of matching agents
            are trained. None trains all. The names are those of `with agent(name):` around the calls, else of spans of
            the agent framework (`gen_ai.agent.name`).
    """

    trained_agents: str | None = None
    _trainer: Any = None

    def __init__(self, *, trained_agents: str | None = None) -> None:
        if trained_agents is not None:
            self.trained_agents = trained_agents

    def rollout(self, task: TaskT, resources: NamedResources, rollout: Rollout) -> RolloutResult:
        """Run the task once. Return None, the final reward, spans to add, or a `Rollout` with its output."""
        raise NotImplementedError(f"{type(self).__name__} must define rollout or rollout_async")

    async def rollout_async(self, task: TaskT, resources: NamedResources, rollout: Rollout) -> RolloutResult:
        """Run the task once, without blocking the event loop."""
        raise NotImplementedError(f"{type(self).__name__} must define rollout or rollout_async")

    def training_rollout(self, task: TaskT, resources: NamedResources, rollout: Rollout) -> RolloutResult:
        """Run a task of mode `train`; calls `rollout` by default."""
        return self.rollout(task, resources, rollout)

    def validation_rollout(self, task: TaskT, resources: NamedResources, rollout: Rollout) -> RolloutResult:
        """Run a task of mode `val` or `test`, or without a mode; calls `rollout` by default."""
        return self.rollout(task, resources, rollout)

    async def training_rollout_async(self, task: TaskT, resources: NamedResources, rollout: Rollout) -> RolloutResult:
        """Run a task of mode `train`; calls `rollout_async` by default."""
        return await self.rollout_async(task, resources, rollout)

    async def validation_rollout_async(self, task: TaskT, resources: NamedResources, rollout: Rollout) -> RolloutResult:
        """Run a task of mode `val` or `test`, or without a mode; calls `rollout_async` by default."""
        return await self.rollout_async(task, resources, rollout)

    def is_async(self) -> bool:
        """Return True if this agent defines a method that runs on the event loop.

        If a subclass overrides it, True excludes its sync methods, False its async methods.
        """
        kind = type(self)
        return any(
            self._defines(f"{name}_async") or inspect.iscoroutinefunction(getattr(kind, name)) for name in _METHODS
        )

    def method_for(self, mode: RolloutMode | None) -> Callable[..., Any]:
        """Return the method that runs a rollout of this mode: the most specific override, async first.

        A rollout without a mode runs the method of mode `val`.

        Raises:
            NotImplementedError: the class defines no such method.
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
        """Return True if the method for this mode takes resources."""
        return names_argument(self.method_for(mode), "resources", _ARGUMENTS)

    @property
    def trainer(self) -> Any:
        """Trainer that runs this agent.

        Raises:
            ValueError: there is none.
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
        return {**self.__dict__, "_trainer": None}  # a trainer holds the model, which is not sent to other processes

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
        """Set the runner for the calling task; the runner calls it."""
        _runner.set(runner)


def rollout_call(
    agent: LitAgent[Any], rollout: AttemptedRollout, resources: NamedResources
) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
    """Return the method of the agent that runs a rollout, with its positional and its keyword arguments."""
    method = agent.method_for(rollout.mode)
    values = dict(zip(_ARGUMENTS, (rollout.input, resources, rollout), strict=True))
    args, kwargs = arguments_for(method, values)
    return method, args, kwargs


Func = Callable[..., Any]
ResourceT = TypeVar("ResourceT", bound=Resource)

_RESOURCE_PARAMETERS = ("llm", "prompt_template", "resources")
_KNOWN = ("task", *_RESOURCE_PARAMETERS, "rollout")


class FunctionalLitAgent(LitAgent[TaskT]):
    """Agent made of a function. Calling the agent calls the function.

    Args:
        func: the function, sync or async, with parameters among task, llm, prompt_template, resources and rollout.
        strip_proxy: give the function a plain `LLM` whose endpoint is the URL of the rollout.
        trained_agents: as in `LitAgent`.
        defaults: resources by parameter name, used if the rollout's resources hold none of that kind.

    Raises:
        ValueError: the first parameter is not `task`, or one has another name and no default.
    """

    def __init__(
        self,
        func: Func,
        *,
        strip_proxy: bool = True,
        trained_agents: str | None = None,
        defaults: NamedResources | None = None,
    ) -> None:
        super().__init__(trained_agents=trained_agents)
        parameters = inspect.signature(func).parameters
        label = getattr(func, "__qualname__", repr(func))
        if next(iter(parameters), None) != "task":
            raise ValueError(f"the first parameter of {label} must be named task")
        unknown = [
            name
            for name, parameter in parameters.items()
            if name not in (*_KNOWN, *(defaults or ())) and parameter.default is inspect.Parameter.empty
        ]
        if unknown:
            raise ValueError(f"{label} asks for {unknown[0]!r}; on offer are {', '.join(_KNOWN)}")
        self._func = func
        self._parameters = frozenset(parameters)
        self._strip_proxy = strip_proxy
        self._defaults: NamedResources = defaults or {}
        functools.update_wrapper(self, func)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self._func(*args, **kwargs)

    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self._func)

    def method_for(self, mode: RolloutMode | None) -> Func:
        return self.rollout_async if self.is_async() else self.rollout

    def needs_resources(self, mode: RolloutMode | None) -> bool:
        return not self._parameters.isdisjoint(set(_RESOURCE_PARAMETERS) - set(self._defaults))

    def rollout(self, task: Any, resources: NamedResources, rollout: Rollout) -> RolloutResult:
        task = as_annotated(self._func, "task", task, rollout)
        result: RolloutResult = self._func(task, **self._arguments(resources, rollout))
        return result

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Rollout) -> RolloutResult:
        task = as_annotated(self._func, "task", task, rollout)
        result: RolloutResult = await self._func(task, **self._arguments(resources, rollout))
        return result

    def _arguments(self, resources: NamedResources, rollout: Rollout) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        if "llm" in self._parameters:
            llm = self._pick(resources, LLM, "llm")
            if self._strip_proxy and isinstance(llm, ProxyLLM) and isinstance(rollout, AttemptedRollout):
                llm = llm.for_rollout(rollout.rollout_id, rollout.attempt.attempt_id)
            arguments["llm"] = llm
        if "prompt_template" in self._parameters:
            arguments["prompt_template"] = self._pick(resources, PromptTemplate, "prompt_template")
        if "tokenizer" in self._parameters and "tokenizer" in self._defaults:
            arguments["tokenizer"] = resources.get("tokenizer", self._defaults["tokenizer"])
        if "resources" in self._parameters:
            arguments["resources"] = resources
        if "rollout" in self._parameters:
            arguments["rollout"] = rollout
        return arguments

    def _pick(self, resources: NamedResources, kind: type[ResourceT], name: str) -> ResourceT:
        for candidate in (resources.get(name), *resources.values(), self._defaults.get(name)):
            if isinstance(candidate, kind):
                return candidate
        held = ", ".join(f"{key}: {type(value).__name__}" for key, value in resources.items()) or "nothing"
        raise ValueError(f"the agent asks for {name!r}, but the resources hold no {kind.__name__} (they hold {held})")


@overload
def rollout(
    func: Func, *, trained_agents: str | None = None, model: LLM | None = None, tokenizer: LLM | None = None
) -> FunctionalLitAgent[Any]: ...
@overload
def rollout(
    func: None = None, *, trained_agents: str | None = None, model: LLM | None = None, tokenizer: LLM | None = None
) -> Callable[[Func], FunctionalLitAgent[Any]]: ...
def rollout(
    func: Func | None = None,
    *,
    trained_agents: str | None = None,
    model: LLM | None = None,
    tokenizer: LLM | None = None,
) -> FunctionalLitAgent[Any] | Callable[[Func], FunctionalLitAgent[Any]]:
    """Make an agent of a function; the names of its parameters select their values.

    Args:
        func: the function.
        trained_agents: as in `LitAgent`.
        model: the `llm` of runs without an LLM resource; an algorithm that trains replaces it by its own model.
        tokenizer: value of a parameter `tokenizer`.
    """
    defaults: NamedResources = {
        name: value for name, value in (("llm", model), ("tokenizer", tokenizer)) if value is not None
    }
    return _decorated(func, (), True, trained_agents, defaults)


@overload
def llm_rollout(
    func: Func, *, strip_proxy: bool = True, trained_agents: str | None = None
) -> FunctionalLitAgent[Any]: ...
@overload
def llm_rollout(
    func: None = None, *, strip_proxy: bool = True, trained_agents: str | None = None
) -> Callable[[Func], FunctionalLitAgent[Any]]: ...
def llm_rollout(
    func: Func | None = None, *, strip_proxy: bool = True, trained_agents: str | None = None
) -> FunctionalLitAgent[Any] | Callable[[Func], FunctionalLitAgent[Any]]:
    """Make an agent of a function `(task, llm[, rollout])`.

    Raises:
        ValueError: the function has no parameter `llm`.
    """
    return _decorated(func, ("llm",), strip_proxy, trained_agents)


@overload
def prompt_rollout(func: Func) -> FunctionalLitAgent[Any]: ...
@overload
def prompt_rollout(func: None = None) -> Callable[[Func], FunctionalLitAgent[Any]]: ...
def prompt_rollout(func: Func | None = None) -> FunctionalLitAgent[Any] | Callable[[Func], FunctionalLitAgent[Any]]:
    """Make an agent of a function `(task, prompt_template[, rollout])`.

    Raises:
        ValueError: the function has no parameter `prompt_template`.
    """
    return _decorated(func, ("prompt_template",), True, None)


def _decorated(
    func: Func | None,
    required: Sequence[str],
    strip_proxy: bool,
    trained_agents: str | None,
    defaults: NamedResources | None = None,
) -> FunctionalLitAgent[Any] | Callable[[Func], FunctionalLitAgent[Any]]:
    def decorate(inner: Func) -> FunctionalLitAgent[Any]:
        for name in required:
            if name not in inspect.signature(inner).parameters:
                raise ValueError(f"{getattr(inner, '__qualname__', repr(inner))} needs a parameter named {name}")
        return FunctionalLitAgent(inner, strip_proxy=strip_proxy, trained_agents=trained_agents, defaults=defaults)

    return decorate if func is None else decorate(func)
