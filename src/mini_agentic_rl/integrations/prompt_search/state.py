"""The state of a search for a prompt. Written whole into every checkpoint."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from ...errors import UserError
from ...files import read_json, reading

_BEST = "best_prompt.txt"

StateT = TypeVar("StateT", bound="SearchState")


class Candidate(Protocol):
    """A prompt that can be tried."""

    @property
    def name(self) -> str: ...

    @property
    def template(self) -> str: ...


class Scored(Candidate, Protocol):
    """A prompt whose worth may be known."""

    @property
    def score(self) -> float | None: ...


@dataclass(kw_only=True)
class SearchState(ABC):
    """State that every search has."""

    algorithm: ClassVar[str]
    """Name of the algorithm; its files carry it in small letters."""
    unit: ClassVar[str]
    """Name of a step of it."""

    logged: int = 0
    """Rows of metrics that were logged."""
    rejected: dict[str, int] = field(default_factory=dict)
    """Attempts at a new prompt that came to nothing, by reason."""
    unrewarded: dict[str, int] = field(default_factory=dict)
    """Rollouts that earned no reward, by reason."""
    rewarded: int = 0
    """Rollouts that earned one."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Finished steps."""

    @property
    @abstractmethod
    def first(self) -> Candidate | None:
        """The prompt that it began with; None before that was tried."""

    @property
    @abstractmethod
    def winner(self) -> Scored | None:
        """The best prompt so far; None before the first was tried."""

    @property
    @abstractmethod
    def history(self) -> list[dict[str, Any]]:
        """Every prompt that is kept, in the order of making."""

    @property
    @abstractmethod
    def progress(self) -> Mapping[str, Any]:
        """Numbers of the search's own for the summary."""

    @classmethod
    @abstractmethod
    def parse(cls: type[StateT], state: dict[str, Any]) -> StateT:
        """Return the state that `dataclasses.asdict` has made a dictionary of."""

    def reject(self, reason: str) -> None:
        """Count an attempt at a new prompt that came to nothing."""
        self.rejected[reason] = self.rejected.get(reason, 0) + 1

    @property
    def summary(self) -> Mapping[str, Any]:
        """The best prompt, the search's own numbers, the history, and counts of what came to nothing."""
        if self.winner is None:
            return {}
        return {
            "best_version": self.winner.name,
            "best_prompt": self.winner.template,
            "score": self.winner.score,
            **self.progress,
            "history": self.history,
            "rejected": dict(self.rejected),
            "unrewarded": dict(self.unrewarded),
        }

    @classmethod
    def file(cls) -> str:
        """Return the name of its file, in checkpoints and in the result."""
        return f"{cls.algorithm.lower()}.json"

    def write(self, folder: Path) -> None:
        """Write the whole state, and beside it the text of the best prompt."""
        write_json(folder / self.file(), asdict(self))
        if self.winner is not None:
            write_best(folder, self.winner)

    @classmethod
    def read(cls: type[StateT], folder: Path, template: str) -> StateT:
        """Read the state in a checkpoint.

        Raises:
            UserError: it is the checkpoint of another algorithm, or of a search from another prompt than `template`.
        """
        path = folder / cls.file()
        if not path.is_file():
            raise UserError(
                f"the checkpoint {folder} was not written by {cls.algorithm}: choose another `output_dir`, "
                "or `resume=False`"
            )
        with reading(path):
            found = cls.parse(read_json(path))
            first = found.first
        if first is None or first.template != template:
            raise UserError(
                f"the search in {folder} started from another prompt than `initial_resources` hold now: "
                "give the same prompt, or `resume=False` and another `output_dir`"
            )
        return found

    @classmethod
    def read_logged(cls, folder: Path) -> int:
        """Return the number of rows that a search had logged when it wrote a checkpoint."""
        with reading(folder / cls.file()):
            return int(read_json(folder / cls.file())["logged"])


def write_best(folder: Path, prompt: Candidate) -> None:
    """Write the text of the best prompt."""
    (folder / _BEST).write_text(prompt.template, encoding="utf-8")


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a value for a person to read."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
