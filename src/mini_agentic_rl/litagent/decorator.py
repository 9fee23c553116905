"""Decorators that make agents of functions.

The first parameter is named `task`; the others say what the function wants.

`llm` is an endpoint, `prompt_template` a prompt, `resources` all of them by name, `rollout` the rollout. Where the
resources hold several endpoints or prompts, the one named as the parameter is taken, else the first.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from ..types import LLM, AttemptedRollout, NamedResources, PromptTemplate, ProxyLLM, Resource, Rollout, RolloutMode
from .agent import LitAgent, RolloutResult, TaskT
from .arguments import as_annotated

Func = Callable[..., Any]
ResourceT = TypeVar("ResourceT", bound=Resource)

_RESOURCE_PARAMETERS = ("llm", "prompt_template", "resources")
_KNOWN = ("task", *_RESOURCE_PARAMETERS, "rollout")


class FunctionalLitAgent(LitAgent[TaskT]):
    """Agent made of a function. Calling the agent calls the function.

    Args:
        func: the function, sync or async; its parameters are named among task, llm, prompt_template, resources and
            rollout.
        strip_proxy: give the function a plain `LLM` whose endpoint is the rollout's own URL.
        trained_agents: that of `LitAgent`.
        defaults: resources by parameter name, for where the rollout's resources hold none of that kind.

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
        result: RolloutResult = self._func(self._task(task, rollout), **self._arguments(resources, rollout))
        return result

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Rollout) -> RolloutResult:
        result: RolloutResult = await self._func(self._task(task, rollout), **self._arguments(resources, rollout))
        return result

    def _task(self, row: Any, rollout: Rollout) -> Any:
        return as_annotated(self._func, "task", row, rollout)

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
    """Make an agent of a function that names what it wants.

    `model` is the `llm` of runs whose resources hold none: an algorithm that trains puts its own model in its place.
    `tokenizer` is handed to a parameter of that name.
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
