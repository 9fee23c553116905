"""Versions of adapters on the servers: the one that requests begin with, and older ones that are still in use."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...files import LOCK_FILE, is_written

_RUN: Final = re.compile("[0-9a-f]{6}")
"""The part of a name that tells one run from others."""


def runs_left_in(folder: Path) -> dict[str, Path]:
    """Return runs that were killed and the folders of weights that they have left in `folder`."""
    return {
        entry.name: entry
        for entry in (folder.iterdir() if folder.is_dir() else ())
        if _RUN.fullmatch(entry.name) and (entry / LOCK_FILE).exists() and not is_written(entry)
    }


@dataclass(eq=False)
class Publication:
    """Weights of one version of one adapter, as servers have them."""

    adapter: str
    version: int
    name: str
    """Name of the weights on the servers, new for each publication: a reload under an old name would serve keys that
    were cached with the old weights."""
    folder: Path
    salt: str
    """Cached keys are shared among requests of one salt. vLLM takes no @ and no / in it."""
    users: int = 0
    """Requests under way that began with it."""


class Publications:
    """All versions that are in use. Used from the pool's event loop only.

    Args:
        folder: where each version gets a folder of its own.
        run: tells the names of this run from those of others on a server: six hexadecimal digits.
        left: those of runs that were killed.
    """

    def __init__(self, folder: Path, run: str, left: Collection[str] = ()) -> None:
        self._folder = folder
        self._run = run
        self._known = {run, *left}
        self._count = 0
        self.current: dict[str, Publication] = {}
        self.older: set[Publication] = set()

    def new(self, adapter: str, version: int) -> Publication:
        """Return a publication with a name and a folder that no other has."""
        self._count += 1
        number = f"v{version}.{self._run}{self._count}"
        name = f"{adapter}@{number}"
        return Publication(adapter, version, name, self._folder / name, f"{adapter}.{number}")

    def is_known(self, name: str) -> bool:
        """Return whether a name on a server is of this run, or of one that was killed."""
        _, dot, number = name.rpartition(".")
        return bool(dot) and number[: len(self._run)] in self._known

    def in_use(self) -> list[Publication]:
        """Return all that servers need."""
        return [*self.current.values(), *self.older]

    def promote(self, publication: Publication) -> None:
        """Let requests begin with it from now on."""
        previous = self.current.get(publication.adapter)
        self.current[publication.adapter] = publication
        if previous is not None:
            self.older.add(previous)

    def take_unused(self) -> list[Publication]:
        """Return, and forget, older ones that nothing uses any more."""
        unused = [one for one in self.older if not one.users]
        self.older.difference_update(unused)
        return unused
