"""The shape of a task with turns: what the model is told, what comes back for each of its answers, and the reward.

A family of tasks (`Episodes`) draws rows by seed and starts an `Episode` of any row. The episode is the world that the
model talks to: it takes an answer and gives what follows, which is the results of tools, or the next words of the user.
It knows no model, so a scripted expert can play it too: that is how the examples to imitate are made, and why they are
token by token what an agent then sees.
"""

from __future__ import annotations

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeAlias

from ..messages import Message, system, user
from ..rows import SPLITS, DatasetError, Row, TaskRows, digest, split_of

TextTools: TypeAlias = Mapping[str, tuple[str, Callable[[str], str]]]
"""Tools by name: the one argument of each, and the function that returns its result."""

TRANSFER: Final = "transfer"
"""The split of what is never trained: other wordings, and other operations, units, words or kinds of questions."""
SPLITS_OF_EPISODES: Final = (*SPLITS, TRANSFER)

_MAX_DRAWS: Final = 2000
"""Draws for one row before a split is taken to be used up."""


class Episode(ABC):
    """One task that is being worked on. It is played once, and asked for its scores at the end."""

    @abstractmethod
    def receive(self, message: Mapping[str, Any]) -> list[Message]:
        """Take an answer of the model, and return the messages that follow it; none where the episode is over."""

    @abstractmethod
    def scores(self) -> dict[str, float]:
        """Return `reward`, from 0 to 1 and 1 only for what is wholly right, and what else there is to count."""

    @abstractmethod
    def expert(self) -> Message:
        """Return what someone who knows how would answer now."""


class Episodes(ABC):
    """A family of tasks: its words, its tools, its rows, and how one of them is played."""

    name: ClassVar[str]
    levels: ClassVar[tuple[int, ...]] = (1, 2, 3, 4)
    """From easy to hard; what each means stands in the family's page."""
    prompt: ClassVar[str]
    """The system prompt."""
    tools: ClassVar[Sequence[dict[str, Any]]] = ()
    """Tools to send with every call, and to render into the prompt of an example."""
    shared_tools: ClassVar[TextTools] = {}
    """Tools whose results depend on no task, so that a chat can offer them."""
    max_turns: ClassVar[int] = 1
    """The most model calls of a rollout."""
    max_new_tokens: ClassVar[int] = 64
    """Tokens that one model call needs."""

    @abstractmethod
    def draw(self, rng: random.Random, split: str, level: int) -> Row | None:
        """Return a row of a level without its `id`; None where what was drawn belongs to another split.

        The row's `key` says which rows are the same task.
        """

    @abstractmethod
    def start(self, task: Mapping[str, Any]) -> Episode:
        """Begin a task.

        Raises:
            ValueError: the task lacks a field that the family needs.
        """

    def tasks(self, split: str, size: int, seed: int = 0, levels: Sequence[int] | None = None) -> TaskRows:
        """Return `size` different tasks of one split, whose levels take turns.

        A row holds `id`, `question`, `answer`, `difficulty` (its level) and what the family needs. The same arguments
        give the same rows on every machine, and a smaller data set is the beginning of a larger one.

        Raises:
            DatasetError: an unknown split or level, a negative size, or a size beyond what the levels have to offer.
        """
        if split not in SPLITS_OF_EPISODES:
            raise DatasetError(f"split must be one of {', '.join(SPLITS_OF_EPISODES)}, not {split!r}")
        wanted = tuple(self.levels if levels is None else levels)
        if not wanted or not set(wanted) <= set(self.levels):
            known = ", ".join(map(str, self.levels))
            raise DatasetError(f"{self.name} has the levels {known}, not {list(wanted)}", setting="difficulty")
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

    def opening(self, task: Mapping[str, Any]) -> list[Message]:
        """Return the messages that the conversation begins with.

        Raises:
            ValueError: the task has no question.
        """
        return [system(self.prompt), user(str(field_of(task, "question", self.name)))]

    def can_be_shown(self, task: Mapping[str, Any]) -> bool:
        """Return True if the expert knows how a task is done."""
        return True

    def demonstration(self, task: Mapping[str, Any]) -> list[Message]:
        """Return the conversation of the expert with a task.

        Raises:
            ValueError: the task lacks a field that the family needs.
        """
        episode, messages = self.start(task), self.opening(task)
        for _ in range(self.max_turns):
            answer = episode.expert()
            follows = episode.receive(answer)
            messages += [answer, *follows]
            if not follows:
                break
        return messages

    def _draw_new(self, rng: random.Random, split: str, level: int, used: set[str]) -> Row:
        for _ in range(_MAX_DRAWS):
            row = self.draw(rng, split, level)
            if row is not None and row["key"] not in used:
                return {**row, "difficulty": level}
        raise DatasetError(
            f"no further {split} task of {self.name} found after {len(used)}; ask for a smaller size or more levels"
        )


def belongs(key: str, split: str) -> bool:
    """Return True if what has this key is in a split; transfer takes what the test would, so nothing of train."""
    return split_of(key) == ("test" if split == TRANSFER else split)


def field_of(task: Mapping[str, Any], name: str, family: str) -> Any:
    """Return a field of a task.

    Raises:
        ValueError: there is none, or it is empty.
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
