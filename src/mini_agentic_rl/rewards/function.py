"""Any Python callable as a reward function."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .base import Reward, RewardError, Sample, name_of


class FunctionReward(Reward):
    """The reward that a callable returns, with errors logged and counted.

    A callable that names `completions` is called once for all samples, as TRL calls one. Any other is called for each
    sample with the arguments that it names: `completion` (text or messages, as it came), `text` or `response` (the
    final answer), `messages`, `prompt`, `question`, `sample`, or a column such as `ground_truth`; a first parameter of
    another name is the final answer. It returns a number, True or False, or None for a task that is not its
    own, and may be async.
    """

    def __init__(self, function: Callable[..., Any], *, name: str | None = None) -> None:
        """
        Raises:
            RewardError: it is no callable with a signature that can be read.
        """
        super().__init__(name or name_of(function))
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError) as error:
            raise RewardError(f"{function!r} cannot be a reward function: {error}") from error
        self._function = function
        self._batch = "completions" in parameters
        self._named = [
            parameter
            for parameter in parameters.values()
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        self._names = [parameter.name for parameter in self._named]
        self._takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        if not self._named and not self._takes_all:
            raise RewardError(f"{self.name} takes no arguments, and so cannot be a reward function")

    def score_columns(
        self, completions: Sequence[Any], prompts: Sequence[Any] | None, columns: Mapping[str, Any]
    ) -> Sequence[float | None]:
        """Return the scores, of all samples or one by one."""
        if not self._batch:
            return super().score_columns(completions, prompts, columns)
        offered = {**columns, "completions": completions, "prompts": prompts}
        if not self._takes_all:
            offered = {name: offered[name] for name in self._names if name in offered}
        return self.numbers_of(_result(self._function(**offered)), len(completions))

    def score(self, sample: Sample) -> float | None:
        """Return the score of one sample."""
        offered = {
            "question": sample.question,
            **sample.columns,
            "completion": sample.completion,
            "text": sample.text,
            "response": sample.text,
            "messages": sample.messages,
            "prompt": sample.prompt,
            "sample": sample,
        }
        positional: list[Any] = []
        keywords: dict[str, Any] = {} if not self._takes_all else dict(offered)
        for place, parameter in enumerate(self._named):
            known = parameter.name in offered
            if not known and place == 0:
                value = sample.text
            elif known:
                value = offered[parameter.name]
            elif parameter.default is not parameter.empty:
                continue
            else:
                raise RewardError(f"{self.name} asks for {parameter.name!r}; there are {', '.join(sorted(offered))}")
            if parameter.kind is parameter.POSITIONAL_ONLY:
                positional.append(value)
                keywords.pop(parameter.name, None)
            else:
                keywords[parameter.name] = value
        return self.number_of(_result(self._function(*positional, **keywords)))


def _result(value: Any) -> Any:
    """Return a value, or the result of a coroutine, which runs on a thread of its own without another event loop."""
    if not inspect.iscoroutine(value):
        return value
    coroutine: Coroutine[Any, Any, Any] = value
    with ThreadPoolExecutor(1, "reward") as thread:
        return thread.submit(asyncio.run, coroutine).result()
