"""The families of tasks with turns, by their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..formats import Example, Form
from ..rows import DatasetError, TaskRows
from .countdown import Countdown
from .episode import Episodes
from .guess import GuessTheNumber
from .gym import REASONING_GYM, ReasoningGym, parse_name
from .retrieval import Retrieval
from .units import Units
from .wordle import Wordle

_FAMILIES: Final[Mapping[str, type[Episodes]]] = {
    family.name: family for family in (Countdown, Units, GuessTheNumber, Wordle, Retrieval)
}
EPISODES: Final = (*_FAMILIES, REASONING_GYM)
"""Their names, which are names of data sets and of agents."""

DEFAULT_SIZE: Final = 1000
"""Rows when no size is given."""


def is_episodes(name: str) -> bool:
    """Return True if a data set, as `countdown:1,2` or `reasoning_gym:chain_sum`, is one of these families."""
    return name.partition(":")[0] in EPISODES


def tokens_of_episodes(name: str) -> int:
    """Return the tokens that one model call of a family needs."""
    return _FAMILIES.get(name.partition(":")[0], ReasoningGym).max_new_tokens


def find_episodes(name: str) -> Episodes:
    """Return the family of a data set's name, with or without what stands behind the colon.

    Raises:
        DatasetError: there is none, or no such generator.
        MissingPackageError: the extra that it needs is not installed.
    """
    family, _, rest = name.partition(":")
    if family == REASONING_GYM:
        return ReasoningGym(*parse_name(rest))
    if family not in _FAMILIES:
        raise DatasetError(f"{name!r} is none of {', '.join(EPISODES)}", setting="dataset")
    return _FAMILIES[family]()


def load_episodes(
    name: str, split: str, size: int | None, seed: int, levels: tuple[int, ...] | None = None
) -> TaskRows:
    """Return the tasks of one split; levels behind the name's colon go before `levels`, and None takes them all.

    Raises:
        DatasetError: an unknown family, generator, split or level, or a size beyond what there is.
        MissingPackageError: the extra that it needs is not installed.
    """
    episodes = find_episodes(name)
    rest = name.partition(":")[2]
    if rest and not isinstance(episodes, ReasoningGym):
        if not all(part.strip().isdecimal() for part in rest.split(",")):
            raise DatasetError(f"{name}: levels are written as {episodes.name}:1,2", setting="dataset")
        levels = tuple(int(part) for part in rest.split(","))
    return episodes.tasks(split, DEFAULT_SIZE if size is None else size, seed, levels)


def episode_examples(name: str, rows: TaskRows, form: Form) -> list[Example]:
    """Return one example a row, with the `tools` of the family where it has any: `sft`, the conversation of the expert;
    `rl`, the prompt and the row.

    Raises:
        DatasetError: another form, or an answer that nobody knows.
    """
    episodes = find_episodes(name)
    if form not in ("sft", "rl"):
        raise DatasetError(f"{name} has the forms sft and rl, not {form}", setting="dataset")
    offered: dict[str, Any] = {"tools": list(episodes.tools)} if episodes.tools else {}
    if form == "rl":
        return [{**row, "prompt": episodes.opening(row), "ground_truth": str(row["answer"]), **offered} for row in rows]
    if not all(map(episodes.can_be_shown, rows)):
        raise DatasetError(f"{name} knows no answers, only how to check them: it has the form rl", setting="dataset")
    return [{"messages": episodes.demonstration(row), **offered} for row in rows]
