"""Versions of adapters on the servers: the one that requests begin with, and older ones that are still in use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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
        run: tells the names of this run from those that others have left on a server.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self._folder = folder
        self._run = run
        self._count = 0
        self.current: dict[str, Publication] = {}
        self.older: set[Publication] = set()

    def new(self, adapter: str, version: int) -> Publication:
        """Return a publication with a name and a folder that no other has."""
        self._count += 1
        number = f"v{version}.{self._run}{self._count}"
        name = f"{adapter}@{number}"
        return Publication(adapter, version, name, self._folder / name, f"{adapter}.{number}")

    def is_ours(self, name: str) -> bool:
        """Return whether a name on a server is of this run."""
        return f".{self._run}" in name

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
