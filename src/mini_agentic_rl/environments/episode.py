"""Tasks with turns: the opening messages, the messages that follow each answer of the model, and the reward.

A family of tasks (`Episodes`) draws rows by seed and starts an `Episode` of a row. The episode takes an answer and
returns the messages that follow: results of tools, or the user's next message. It does not depend on a model, so a
scripted expert can play it too. These conversations are the examples to imitate, in the same tokens that an agent sees.

Answers are read strictly: one line "Answer: …" or "Guess: …" at the end. A reward that ignored text after the answer
would teach the model to write such text.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from ..datasets import (
    DEFAULT_SIZE,
    SHORT_IMITATION,
    SPLITS,
    TRANSFER,
    ChatTools,
    DatasetError,
    Example,
    Form,
    Message,
    Row,
    TaskFamily,
    TaskRows,
    digest,
    split_of,
    system,
    user,
)
from ..rewards import encodable, in_ascii_numbers, message_text
from ..tools import TextTools, use_text_tool
from .endpoint import Endpoint, converse
from .environment import Demonstrations, EnvironmentAgent, Outcome, Recipe

EPISODE_DEFAULTS: Final[Mapping[str, Any]] = {
    **SHORT_IMITATION,
    "loop.tool_format": "compact",
    "learner.learning_rate": 4e-4,
    "warm_start.examples": 96,
    "warm_start.learning_rate": 2e-3,
    "warm_start.batch_size": 8,
}
"""Default training settings. Episodes of several calls need more examples until one succeeds, and before that there is
no reward. Twice this learning rate destroyed such agents."""
EXAMPLES_BESIDE: Final[Mapping[str, Any]] = {"loop.sft_coef": 0.1, "loop.sft_per_step": 8}
"""A few examples in each step of reinforcement learning: where most rollouts fail, learning from them alone unlearns
when to end a turn (`docs/algorithms.md`)."""
_MAX_DRAWS: Final = 2000
"""Draws of a new row before the split counts as used up."""


class Episode(ABC):
    """One play of a task."""

    @abstractmethod
    def receive(self, message: Mapping[str, Any]) -> list[Message]:
        """Take an answer of the model, and return the messages that follow it; none at the end of the episode."""

    @abstractmethod
    def scores(self) -> dict[str, float]:
        """Return `reward`, from 0 to 1 and 1 only if everything is right, and further metrics."""

    @abstractmethod
    def expert(self) -> Message:
        """Return the expert's next answer."""


class Episodes(TaskFamily, ABC):
    """A family of tasks with turns: prompt, tools, rows, and the episode of a row. It is an `Environment`."""

    is_environment: ClassVar[bool] = True
    levels: ClassVar[tuple[int, ...]] = (1, 2, 3, 4)
    splits: ClassVar[tuple[str, ...]] = (*SPLITS, TRANSFER)
    prompt: ClassVar[str]
    """The system prompt."""
    tools: ClassVar[Sequence[dict[str, Any]]] = ()
    """Tools of every call, also rendered into the prompt of an example."""
    shared_tools: ClassVar[TextTools] = {}
    """Tools whose results do not depend on a task, so that a chat can offer them."""
    max_turns: ClassVar[int] = 1
    """Model calls of a rollout, at most."""
    max_new_tokens: ClassVar[int] = 64

    @abstractmethod
    def draw(self, rng: random.Random, split: str, level: int) -> Row | None:
        """Return a row of a level without its `id`; None if the draw belongs to another split.

        Rows with the same `key` are the same task.
        """

    @abstractmethod
    def start(self, task: Mapping[str, Any]) -> Episode:
        """Begin a task.

        Raises:
            ValueError: the task lacks a field that the family needs.
        """

    def tasks(
        self, split: str, size: int | None = None, seed: int = 0, levels: Sequence[int] | None = None
    ) -> TaskRows:
        """Return `size` different tasks of one split, cycling through the levels.

        A row has `id`, `question`, `answer`, `difficulty` (its level) and the fields of the family. The same arguments
        give the same rows on every machine, and a smaller data set is the beginning of a larger one.

        Raises:
            DatasetError: an unknown split or level, a negative size, or a size above the number of tasks.
        """
        if split not in self.splits:
            raise DatasetError(f"`split` must be one of {', '.join(self.splits)}, not {split!r}")
        wanted, size = self.levels_of(levels), DEFAULT_SIZE if size is None else size
        if size < 0:
            raise DatasetError(f"size must be 0 or more, not {size}")
        rng = random.Random(f"{self.name}/{split}/{seed}")
        rows: list[Row] = []
        used: set[str] = set()
        for index in range(size):
            row = self._draw_new(rng, split, wanted[index % len(wanted)], used)
            key = str(row.pop("key"))
            used.add(key)
            rows.append({"id": f"{self.name}-{split}-{digest(key)[:12]}", **row})
        return TaskRows(rows)

    def examples(self, rows: Sequence[Mapping[str, Any]], form: Form, seed: int = 0) -> list[Example]:
        """Return one example per row, with the `tools` of the family if it has any: for `sft` the conversation of the
        expert, for `rl` the prompt and the row.

        Raises:
            DatasetError: another form, or a task that the expert cannot demonstrate.
        """
        if form not in ("sft", "rl"):
            raise DatasetError(f"{self.name} has the forms sft and rl, not {form}", setting="dataset")
        offered: dict[str, Any] = {"tools": list(self.tools)} if self.tools else {}
        if form == "rl":
            return [{**row, "prompt": self.opening(row), "ground_truth": str(row["answer"]), **offered} for row in rows]
        if not all(map(self.can_be_shown, rows)):
            raise DatasetError(
                f"{self.name} knows no answers, only how to check them: it has the form rl", setting="dataset"
            )
        return [{"messages": self.demonstration(row), **offered} for row in rows]

    def recipe(self) -> Recipe:
        """Return the agent that plays these tasks, with the expert's demonstrations."""
        demonstrations = Demonstrations(self.demonstration, lambda task: self.tools, self.can_be_shown)
        return Recipe(EnvironmentAgent(self), (), demonstrations)

    @classmethod
    def training_defaults(cls, dataset: str, *, mixes: bool, whole_steps: bool) -> Mapping[str, Any]:
        """Return the default settings of a training on episodes."""
        return {**EPISODE_DEFAULTS, **EXAMPLES_BESIDE} if mixes else EPISODE_DEFAULTS

    def chat(self) -> ChatTools | None:
        """Return the prompt and the tools; None if the results of the tools depend on a task."""
        if not self.shared_tools:
            return None
        return ChatTools(self.prompt, self.tools, partial(use_text_tool, self.shared_tools), self.max_turns)

    def opening(self, task: Mapping[str, Any]) -> list[Message]:
        """Return the first messages of the conversation.

        Raises:
            ValueError: the task has no question.
        """
        return [system(self.prompt), user(str(field_of(task, "question", self.name)))]

    def can_be_shown(self, task: Mapping[str, Any]) -> bool:
        """Return True if the expert can solve a task."""
        return True

    def demonstration(self, task: Mapping[str, Any]) -> list[Message]:
        """Return the expert's conversation about a task.

        Raises:
            ValueError: the task lacks a field that the family needs.
        """
        episode, messages = self.start(task), self.opening(task)
        for _ in range(self.max_turns):
            answer = episode.expert()
            following = episode.receive(answer)
            messages += [answer, *following]
            if not following:
                break
        return messages

    async def rollout(self, task: Mapping[str, Any], endpoint: Endpoint) -> Outcome:
        """Let the model talk until the episode ends or `max_turns` calls are made.

        Raises:
            ValueError: the task lacks a field that the family needs.
            openai.OpenAIError: the endpoint refused a call or could not be reached.
        """
        episode, messages = self.start(task), self.opening(task)

        async def follow(reply: Message) -> Sequence[Message]:
            return await asyncio.to_thread(episode.receive, reply)

        turns, _ = await converse(endpoint, messages, follow, tools=self.tools, max_turns=self.max_turns)
        scores = await asyncio.to_thread(episode.scores)
        return Outcome({**scores, "turns": float(turns)}, messages[-1].get("content"))

    def _draw_new(self, rng: random.Random, split: str, level: int, used: set[str]) -> Row:
        for _ in range(_MAX_DRAWS):
            row = self.draw(rng, split, level)
            if row is not None and row["key"] not in used:
                return {**row, "difficulty": level}
        raise DatasetError(
            f"no further {split} task of {self.name} found after {len(used)}; ask for a smaller size or more levels"
        )


def belongs(key: str, split: str) -> bool:
    """Return True if a key is in a split; `transfer` shares the keys of `test`."""
    return split_of(key) == ("test" if split == TRANSFER else split)


def field_of(task: Mapping[str, Any], name: str, family: str) -> Any:
    """Return a field of a task.

    Raises:
        ValueError: it is missing or empty.
    """
    value = task.get(name)
    if value is None or value == "":
        raise ValueError(f'a task of {family} needs "{name}"')
    return value


def tool_call(number: int, name: str, **arguments: Any) -> Message:
    """Return the message of an assistant that calls one tool."""
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    calls = [{"id": f"call_{number}", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


MAX_CALLS: Final = 8
"""Calls of one message that are run; further ones get an error."""


class ToolEpisode(Episode):
    """An episode with tools, which ends with the first message without calls; its "Answer: …" is the answer."""

    def __init__(self, tools: TextTools) -> None:
        self._tools = tools
        self.answer: str | None = None
        self.used: list[str] = []
        """Names of the tools of successful calls, in order."""
        self.results: list[str] = []
        """Results of these calls."""
        self.failed = 0
        """Number of calls that returned an error."""

    def receive(self, message: Mapping[str, Any]) -> list[Message]:
        """Run the calls of a message, or take its answer."""
        calls = message.get("tool_calls") or ()
        if not calls:
            self.answer = last_line(message)
            return []
        return [
            {"role": "tool", "tool_call_id": str(call.get("id")), "content": encodable(self._run(number, call))}
            for number, call in enumerate(calls)
        ]

    def scores(self) -> dict[str, float]:
        """Return whether the answer is right, whether there was one, and the numbers of successful and failed calls."""
        return {
            "reward": float(self.answer is not None and self.is_right(self.answer)),
            "answered": float(self.answer is not None),
            "calls": float(len(self.used)),
            "failed_calls": float(self.failed),
        }

    @abstractmethod
    def is_right(self, answer: str) -> bool:
        """Return True if an answer is right."""

    def _run(self, number: int, call: Mapping[str, Any]) -> str:
        if number >= MAX_CALLS:
            return f"error: at most {MAX_CALLS} calls at once"
        function = call.get("function") or {}
        name = str(function.get("name"))
        result = use_text_tool(self._tools, name, function.get("arguments"))
        if result.startswith("error: "):
            self.failed += 1
        else:
            self.used.append(name)
            self.results.append(result)
        return result


MAX_ANSWER: Final = 200
"""Characters of an answer."""


def last_line(message: Mapping[str, Any], mark: str = "Answer") -> str | None:
    """Return the text after "Answer: " on the last line of a message.

    None if the message calls a tool, or the last line is not the only one with the mark.
    """
    if message.get("tool_calls"):
        return None
    text = message_text(message)
    begin = f"{mark}: "
    lines = text.rstrip("\n").split("\n")
    if not lines[-1].startswith(begin) or sum(line.lstrip().startswith(f"{mark}:") for line in lines) > 1:
        return None
    answer = lines[-1].removeprefix(begin).strip()
    return answer if 0 < len(answer) <= MAX_ANSWER else None


_NUMBER: Final = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d{1,15})(?:\.\d{1,12})?", re.ASCII)


def plain(text: str) -> str:
    """Return a number without thousands commas, any other text in lower case without a final full stop."""
    text = " ".join(in_ascii_numbers(text).split())
    if _NUMBER.fullmatch(text):
        return text.replace(",", "")
    return text.casefold().removesuffix(".").rstrip()


def number_of(text: str) -> str | None:
    """Return the number of an answer such as "1,500 m", without its unit; None for any other text."""
    text = in_ascii_numbers(text)
    match = _NUMBER.match(text)
    if match is None or not re.fullmatch(r"(?: [^\W\d_]+){0,2}", text[match.end() :]):
        return None
    return match[0].replace(",", "")
