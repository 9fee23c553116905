"""Samples, the base class of reward functions, and any Python callable as a reward function.

A reward function is called as in TRL: `fn(completions=[…], prompts=[…], ground_truth=[…], …)`, with a list for each
column. It returns a number for each completion, or None for no reward. None is not 0: a sample without a reward is not
trained on. Columns and results may be arrays or tensors. Failures are logged, and counted by reason in `errors`.

A completion is text, or the messages that followed the prompt. Reading it must not fail on any text of a model.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Final, TypeAlias, TypeGuard

from ..errors import UserError

logger = logging.getLogger(__name__)

Message: TypeAlias = Mapping[str, Any]
TextOrMessages: TypeAlias = str | Sequence[Message]
"""Text, or OpenAI messages."""


@dataclass(frozen=True)
class Sample:
    """One completion to score."""

    completion: TextOrMessages
    prompt: TextOrMessages | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The fields of the sample's row by name, such as `ground_truth`."""

    @property
    def text(self) -> str:
        """Return the final answer: the text, or the text of the last message; "" if that is not the assistant's or
        calls a tool."""
        if isinstance(self.completion, str):
            return self.completion
        messages = as_messages(self.completion, "assistant")
        last = messages[-1] if messages else {}
        return "" if last.get("role", "assistant") != "assistant" or last.get("tool_calls") else message_text(last)

    @property
    def written(self) -> str:
        """Return everything that the assistant wrote, line by line."""
        texts = [message_text(message) for message in self.messages if message.get("role", "assistant") == "assistant"]
        return "\n".join(text for text in texts if text)

    @property
    def messages(self) -> list[Message]:
        """Return the completion as messages."""
        return as_messages(self.completion, "assistant")

    @property
    def question(self) -> str:
        """Return the prompt as text; several messages with their roles."""
        messages = as_messages(self.prompt or "", "user")
        if len(messages) == 1:
            return message_text(messages[0])
        return "\n\n".join(f"{message.get('role', 'user')}: {message_text(message)}" for message in messages)


def samples_of(completions: Sequence[Any], prompts: Sequence[Any] | None, columns: Mapping[str, Any]) -> list[Sample]:
    """Return one sample for each completion. A column that is not a list of as many values is shared by all."""
    count = len(completions)
    prompts = as_list(prompts)
    lists = {name: as_list(value) for name, value in columns.items()}
    listed = {name: values for name, values in lists.items() if values is not None and len(values) == count}
    shared = {name: value for name, value in columns.items() if name not in listed}
    return [
        Sample(
            completion if isinstance(completion, str) else as_messages(completion, "assistant"),
            None if prompts is None else prompts[at],
            {**shared, **{name: values[at] for name, values in listed.items()}},
        )
        for at, completion in enumerate(completions)
    ]


def as_list(value: Any) -> list[Any] | None:
    """Return the values of a sequence, an array or a tensor; None for text and other single values."""
    if callable(convert := getattr(value, "tolist", None)):
        value = convert()
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str | bytes) else None


def as_messages(value: Any, role: str) -> list[Message]:
    """Return messages from messages, one message or text; `role` is the role of text."""
    if value is None or value == "":
        return []
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if isinstance(value, Mapping):
        return [value]
    if not isinstance(value, Sequence):
        return [{"role": role, "content": str(value)}]
    return [item if isinstance(item, Mapping) else {"role": role, "content": str(item)} for item in value]


def message_text(message: Message) -> str:
    """Return the text of a message, its parts joined; "" without any."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return ""
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
    return "".join(text for text in texts if isinstance(text, str))


def encodable(text: str) -> str:
    """Return the text with a question mark for each half surrogate pair, which no JSON body can carry."""
    return text.encode("utf-8", "replace").decode("utf-8")


RewardFunction: TypeAlias = Callable[..., "list[float | None]"]
"""`fn(completions=…, prompts=…, **columns)`; completions are texts or lists of messages."""

_COUNTING = threading.Lock()


FAILED: Final = float("nan")
"""Sentinel, compared by identity, of a score that could not be computed; None means that the sample is not a task of
this function."""


def is_score(score: float | None) -> TypeGuard[float]:
    """Return True unless the score is None or `FAILED`."""
    return score is not None and score is not FAILED


class RewardError(UserError, ValueError):
    """A reward function that cannot work with these rows or settings; the message says what is missing."""


class Reward:
    """Base of the reward functions: override `score`, or `score_all` to score samples together.

    An exception of `score` fails that sample only; one of `score_all` fails all samples. A `RewardError` is raised to
    the caller, because it concerns every sample.
    """

    def __init__(self, name: str) -> None:
        """`name` is used in logs and metrics."""
        self.name = name
        self.errors: Counter[str] = Counter()
        """Number of samples without a reward, by reason."""

    @property
    def __name__(self) -> str:
        """Return the name, for TRL."""
        return self.name

    def __call__(
        self, completions: Sequence[Any], prompts: Sequence[Any] | None = None, **columns: Any
    ) -> list[float | None]:
        """Return a reward for each completion, or None.

        Raises:
            RewardError: the rows lack a column that the reward needs.
        """
        scores = self.checked_scores(completions, prompts, columns)
        return [score if is_score(score) else None for score in scores]

    def checked_scores(
        self, completions: Sequence[Any], prompts: Sequence[Any] | None, columns: Mapping[str, Any]
    ) -> list[float | None]:
        """Return finite scores, None for a task that is not this function's, and `FAILED` for a failure."""
        try:
            scores = self.score_columns(completions, prompts, columns)
        except RewardError:
            raise
        except Exception as error:  # a reward that fails must not end a training
            return [self._failed_by(error, count=len(completions))] * len(completions)
        checked: list[float | None] = []
        for score in scores:
            if is_score(score):
                value = float(score)
                score = value if math.isfinite(value) else self.failed("the score is not finite", value)
            checked.append(score)
        return checked

    async def in_thread(
        self, completions: Sequence[Any], prompts: Sequence[Any] | None = None, **columns: Any
    ) -> list[float | None]:
        """Return the rewards, computed in a thread so that the event loop is not blocked."""
        return await asyncio.to_thread(self, completions, prompts, **columns)

    def score_columns(
        self, completions: Sequence[Any], prompts: Sequence[Any] | None, columns: Mapping[str, Any]
    ) -> Sequence[float | None]:
        """Return the scores, by default of the samples made from the arguments."""
        return self.score_all(samples_of(completions, prompts, columns))

    def score_all(self, samples: Sequence[Sample]) -> Sequence[float | None]:
        """Return the scores of all samples, one by one unless overridden."""
        return [self._score_safely(sample) for sample in samples]

    def score(self, sample: Sample) -> float | None:
        """Return the score of one sample; None for a task that is not this function's, `failed(…)` for a failure."""
        raise NotImplementedError

    def failed(self, reason: str, detail: object = "", *, count: int = 1) -> float:
        """Count samples without a reward, and return `FAILED`. The first failure of each reason is a warning."""
        with _COUNTING:
            known = self.errors[reason]
            self.errors[reason] += count
        level = logging.DEBUG if known else logging.WARNING
        logger.log(
            level, "reward %s: no reward for a sample: %s%s", self.name, reason, f" ({detail})" if detail else ""
        )
        return FAILED

    def _score_safely(self, sample: Sample) -> float | None:
        try:
            return self.score(sample)
        except RewardError:
            raise
        except Exception as error:  # one sample must not cost the others their rewards
            return self._failed_by(error)

    def _failed_by(self, error: Exception, *, count: int = 1) -> float:
        return self.failed(type(error).__name__, str(error).strip().partition("\n")[0][:300], count=count)

    def numbers_of(self, result: Any, count: int) -> list[float | None]:
        """Return the scores of `count` samples from a function's result: a list, an array or a tensor, or a single
        number for one sample.

        Raises:
            RewardError: it is none of these, or of another length.
        """
        values = as_list(result)
        if values is None and count == 1:
            values = [result]
        if values is None or isinstance(result, str) or len(values) != count:
            raise RewardError(f"{self.name} must return a list of {count} rewards, not {str(result)[:80]}")
        return [self.number_of(value) for value in values]

    def number_of(self, value: Any) -> float | None:
        """Return a score as a number; of an array or a tensor, its only element."""
        if value is None:
            return None
        item = getattr(value, "item", None)
        if not isinstance(value, Real) and callable(item):
            value = item()
        if isinstance(value, Real):
            return float(value)
        return self.failed("the function returned no number", type(value).__name__)


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a reward function."""
    name = getattr(function, "__name__", type(function).__name__)
    return str(name)


class FunctionReward(Reward):
    """The reward of a callable, with errors logged and counted.

    A callable with a parameter `completions` is called once for all samples, as in TRL. Any other is called for each
    sample with the arguments that it names: `completion` (text or messages), `text` or `response` (the final answer),
    `messages`, `prompt`, `question`, `sample`, or a column such as `ground_truth`; a first parameter of another name is
    the final answer. It returns a number, True or False, or None for a task that is not its own, and may be async.
    """

    def __init__(self, function: Callable[..., Any], *, name: str | None = None) -> None:
        """
        Raises:
            RewardError: it is not callable, or its signature cannot be read.
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
        """Return the scores, of all samples at once or one by one."""
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
        keywords: dict[str, Any] = dict(offered) if self._takes_all else {}
        for place, parameter in enumerate(self._named):
            if parameter.name in offered:
                value = offered[parameter.name]
            elif place == 0:
                value = sample.text
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
    """Return a value, or the result of a coroutine, which runs in a new thread with its own event loop."""
    if not inspect.iscoroutine(value):
        return value
    coroutine: Coroutine[Any, Any, Any] = value
    with ThreadPoolExecutor(1, "reward") as thread:
        return thread.submit(asyncio.run, coroutine).result()
