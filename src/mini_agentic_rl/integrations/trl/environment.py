"""An environment of TRL's `environment_factory`: a class with `reset`, tools as its methods, perhaps a `get_reward`.

Each concurrent rollout has an instance, which is reset and reused; an instance that raised is dropped. The text that
`reset(**row)` returns is appended to the last message. The model calls the methods until it answers without a call. The
reward is that of `get_reward` plus those of the reward functions, which get the instance as `environments`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING, Any

from ...datasets import Row
from ...emitter import emit_annotation
from ...environments import REWARD, Endpoint, Message, Outcome, converse
from ...errors import UserError
from ...rewards import Reward, WeightedSum

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

# Reward functions are called as TRL calls them, and their weighted rewards summed. Each gets `prompts`, `completions`
# and `completion_ids` with one item, a list for each column of the row, `environments`, `log_metric` and `log_extra`.


Function = Callable[..., Any]


class _Called(Reward):
    """A reward function, called as TRL calls it."""

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


# Python functions as tools of a model, with schemas from signature and docstring as in TRL and transformers.


Tool = Callable[..., Any]

_NO_TOOLS = ("reset", "get_reward")


def methods_of(environment: Any) -> list[Tool]:
    """Return the methods of an environment that the model may call: the public ones of its class but for `reset` and
    `get_reward`."""
    names = [name for name, _ in inspect.getmembers(type(environment), predicate=inspect.isfunction)]
    return [getattr(environment, name) for name in names if name not in _NO_TOOLS and not name.startswith("_")]


def schemas_of(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Return the schemas of tools.

    Raises:
        UserError: one lacks a docstring or type hints of its arguments.
    """
    from transformers.utils import get_json_schema

    schemas = []
    for tool in tools:
        try:
            schemas.append(get_json_schema(tool))
        except Exception as error:  # `get_json_schema` raises several types, all about the function
            name = getattr(tool, "__qualname__", repr(tool))
            first = str(error).strip().partition("\n")[0]
            raise UserError(f"{name} cannot be a tool: {first}", setting="environment_factory") from error
    return schemas


Factory = Callable[[], Any]

_ALONE = ""
"""Name of a single environment."""
_MOST_CALLS = 10
_REPLACED = ("prompt", "completion")
"""Columns of a row that reward functions get as `prompts` and `completions`."""


class WithoutEnvironment:
    """The environment of a training with tools only."""

    def reset(self, **row: Any) -> None:
        """Do nothing."""


class TRLEnvironment:
    """An environment for `EnvironmentAgent`, made of the arguments of TRL's GRPOTrainer.

    Args:
        environment_factory: makes an instance; or several factories by their names in the column `environment`.
        reward_funcs: reward functions; optional if the environment has `get_reward`.
        reward_weights: a factor for each.
        tools: functions that the model may call beside the environment's.
        train_dataset: rows; None makes every task an empty prompt, which `reset` fills.
        max_tool_calling_iterations: most times that the model calls tools before its last answer.

    Raises:
        UserError: an environment has no `reset`, nothing gives a reward, or a method cannot be a tool.
    """

    def __init__(
        self,
        environment_factory: Factory | Mapping[str, Factory],
        reward_funcs: Any = (),
        *,
        reward_weights: Sequence[float] | None = None,
        tools: Sequence[Tool] = (),
        train_dataset: Sequence[Mapping[str, Any]] | None = None,
        max_tool_calling_iterations: int = _MOST_CALLS,
    ) -> None:
        several = isinstance(environment_factory, Mapping)
        self._factories: dict[str, Factory] = (
            dict(environment_factory) if isinstance(environment_factory, Mapping) else {_ALONE: environment_factory}
        )
        functions = [reward_funcs] if callable(reward_funcs) else list(reward_funcs)
        for function in functions:
            _check(function)
        if reward_weights is not None and len(reward_weights) != len(functions):
            raise UserError(
                f"{len(reward_weights)} weights for {len(functions)} reward functions", setting="reward_weights"
            )
        called = [function if isinstance(function, Reward) else _Called(function) for function in functions]
        self._rewards = WeightedSum(called, reward_weights) if called else None
        self._wants_ids = any("completion_ids" in inspect.signature(function).parameters for function in functions)
        self._tools, self._rows, self._most = list(tools), train_dataset, max_tool_calling_iterations
        self._idle: defaultdict[str, deque[Any]] = defaultdict(deque)
        self._schemas: dict[str, list[dict[str, Any]]] = {}
        for name, factory in self._factories.items():
            instance = factory()
            if not callable(getattr(type(instance), "reset", None)):
                raise UserError(f"{_kind(instance)} has no reset method", setting="environment_factory")
            if self._rewards is None and not hasattr(type(instance), "get_reward"):
                raise UserError(
                    f"nothing gives a reward: write a get_reward method of {_kind(instance)}, or give reward_funcs",
                    setting="reward_funcs",
                )
            self._schemas[name] = schemas_of([*self._tools, *methods_of(instance)])
            self._idle[name].append(instance)
        if several and train_dataset is None:
            raise UserError("several environments need rows whose column `environment` names one", setting="dataset")

    def tasks(self, split: str, size: int, seed: int = 0) -> Sequence[Row]:
        """Return the first rows, the same for every split, or empty prompts if there are no rows."""
        if self._rows is not None:
            return [dict(row) for row in self._rows[:size]]
        return [{"prompt": [{"role": "user", "content": ""}]} for _ in range(size)]

    async def rollout(self, task: Mapping[str, Any], endpoint: Endpoint) -> Outcome:
        """Play one episode.

        Raises:
            ValueError: the task names no environment that there is, or the environment gave no finite reward.
            openai.OpenAIError: the endpoint refused a call or could not be reached; a conversation that has outgrown
                the model's context ends instead.
            Exception: whatever the environment raised in `reset` or `get_reward`.
        """
        name = self._name_of(task)
        with self._instance(name) as environment:
            prompt = await _opening(environment, task, several=name != _ALONE)
            completion, ids = await self._talk(name, environment, list(prompt), endpoint)
            columns = {**task, "environments": environment, "completion_ids": ids}
            scores = await asyncio.to_thread(self._score, prompt, completion, columns)
            reward = await _environment_reward(environment)
        if reward is not None:
            scores = {**scores, _kind(environment): reward, REWARD: scores.get(REWARD, 0.0) + reward}
        if not scores:
            raise ValueError(f"{_kind(environment)} and its reward functions gave no reward (None)")
        return Outcome(scores, completion[-1].get("content") if completion else None)

    def _score(self, prompt: Any, completion: Any, columns: Mapping[str, Any]) -> dict[str, float]:
        """Return the sum of the reward functions, as `reward`, and each one's number; empty if none gave one, or one
        failed."""
        if self._rewards is None:
            return {}
        given: dict[str, Any] = {name: [value] for name, value in columns.items() if name not in _REPLACED}
        given["log_metric"] = lambda name, value: emit_annotation({"metric": {str(name): float(value)}})
        given["log_extra"] = lambda column, values: emit_annotation(
            {"extra": {str(column): str(values[0]) if values else ""}}
        )
        (total,), parts = self._rewards.sums_and_parts([completion], [prompt], given)
        if total is None:
            return {}
        return {name: value for name, (value,) in parts.items() if value is not None} | {REWARD: total}

    def __getstate__(self) -> dict[str, Any]:
        """Omit the instances: each process makes its own."""
        return {**self.__dict__, "_idle": defaultdict(deque)}

    def _name_of(self, task: Mapping[str, Any]) -> str:
        if _ALONE in self._factories:
            return _ALONE
        name = task.get("environment")
        if name not in self._factories:
            known = ", ".join(map(repr, self._factories))
            raise ValueError(f"the task has environment={name!r}: there are {known}")
        return str(name)

    @contextmanager
    def _instance(self, name: str) -> Iterator[Any]:
        idle = self._idle[name]
        try:
            instance = idle.popleft()
        except IndexError:
            instance = self._factories[name]()
        yield instance
        idle.append(instance)

    async def _talk(
        self, name: str, environment: Any, messages: list[dict[str, Any]], endpoint: Endpoint
    ) -> tuple[list[dict[str, Any]], list[int] | None]:
        """Return the completion as messages in TRL's form, and as ids if a reward function names them."""
        tools = {tool.__name__: tool for tool in (*self._tools, *methods_of(environment))}
        opening, calls, start = len(messages), 0, 0
        ids: list[int] | None = None

        def keep_ids(answer: ChatCompletion) -> None:
            nonlocal start, ids
            prompt_ids = list((answer.model_extra or {}).get("prompt_token_ids", ()))
            start = start or len(prompt_ids)
            ids = [*prompt_ids[start:], *(answer.choices[0].model_extra or {}).get("token_ids", ())]

        async def use_tools(reply: Message) -> list[Message]:
            nonlocal calls
            calls += 1
            if calls > self._most:
                return []
            results: list[Message] = []
            for call in reply.get("tool_calls") or ():
                function = call["function"]
                try:
                    arguments = json.loads(function["arguments"] or "{}")
                    if function["name"] not in tools:
                        raise ValueError(f"Tool {function['name']} not found.")
                    result = await _called(tools[function["name"]], **arguments)
                except Exception as error:  # of the model's arguments, or of the tool: a result in the form of TRL
                    result = {"error": str(error)}
                results.append(
                    {"role": "tool", "name": function["name"], "content": str(result), "tool_call_id": call["id"]}
                )
            return results

        observe = None
        if self._wants_ids:
            extra = {**endpoint.sampling.get("extra_body", {}), "return_token_ids": True}
            endpoint = replace(endpoint, sampling={**endpoint.sampling, "extra_body": extra})
            observe = keep_ids
        schemas = self._schemas[name]
        await converse(endpoint, messages, use_tools, tools=schemas, max_turns=self._most + 1, observe=observe)
        return [_as_trl(message) for message in messages[opening:]], ids


async def _opening(environment: Any, task: Mapping[str, Any], *, several: bool) -> list[dict[str, Any]]:
    prompt = task.get("prompt") or [{"role": "user", "content": ""}]
    messages = (
        [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(message) for message in prompt]
    )
    row = {name: value for name, value in task.items() if not (several and name == "environment")}
    observation = await _called(environment.reset, **row)
    if observation is None:
        return messages
    if not isinstance(observation, str):
        kind = type(observation).__name__
        raise ValueError(f"{_kind(environment)}.reset must return text or None, not {kind}")
    messages[-1]["content"] = f"{messages[-1].get('content') or ''}{observation}"
    return messages


async def _environment_reward(environment: Any) -> float | None:
    if not hasattr(type(environment), "get_reward"):
        return None
    value = await _called(environment.get_reward)
    if value is None:
        return None
    item = getattr(value, "item", None)
    value = item() if not isinstance(value, Real) and callable(item) else value
    if not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"{_kind(environment)}.get_reward returned {value!r}: a reward is a finite number, or None")
    return float(value)


async def _called(function: Callable[..., Any], /, **arguments: Any) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    return await asyncio.to_thread(function, **arguments)


def _as_trl(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message in TRL's form: arguments of calls are parsed if they are JSON."""
    if message["role"] == "tool":
        return {name: value for name, value in message.items() if name != "tool_call_id"}
    reply: dict[str, Any] = {"role": "assistant", "content": message.get("content") or ""}
    for call in message.get("tool_calls") or ():
        function = dict(call["function"])
        with suppress(ValueError, RecursionError):  # keep the text
            function["arguments"] = json.loads(function["arguments"])
        reply.setdefault("tool_calls", []).append({"type": "function", "function": function})
    return reply


def _kind(environment: Any) -> str:
    return type(environment).__name__
