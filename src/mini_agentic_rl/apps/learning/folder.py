"""The folder of a server that learns from use: its sessions, what it serves, and the versions that were learnt.

sessions.db       the store, where none is named
serving.json      what is served: model, adapter, name
published.json    the newest version, and its folder
versions/000012/  weights, optimizer and state of a version; each is written whole, or not at all
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...errors import UserError
from ...files import make_private_folder, read_json, remove_folder, write_folder, write_json

_KEPT: Final = 3
"""Versions that stay: a server may be reading the last but one."""


@dataclass(frozen=True)
class Published:
    """A version that was learnt."""

    version: int
    folder: Path


class UseFolder:
    """The files of a server that learns from use. Written by one learner; read by servers."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def store_path(self) -> Path:
        """File of the store, where none is named."""
        return self.path / "sessions.db"

    @property
    def metrics_path(self) -> Path:
        """File of the learner's metrics."""
        return self.path / "metrics.jsonl"

    @property
    def is_begun(self) -> bool:
        """True if a server has recorded sessions here."""
        return (self.path / "serving.json").is_file()

    def make(self) -> None:
        """Make the folder, for this user alone."""
        make_private_folder(self.path)

    def write_serving(self, facts: Mapping[str, Any]) -> None:
        """Note what is served."""
        self.make()
        write_json(self.path / "serving.json", facts)

    def read_serving(self) -> dict[str, Any]:
        """Return what is served.

        Raises:
            UserError: no server has ever recorded sessions here.
        """
        path = self.path / "serving.json"
        if not self.is_begun:
            raise UserError(
                f"{self.path} holds no sessions: begin with `serve --learn-from-use {self.path}`, which records them"
            )
        return read_json(path)

    def published(self) -> Published | None:
        """Return the newest version; None before the first."""
        path = self.path / "published.json"
        if not path.is_file():
            return None
        facts = read_json(path)
        return Published(int(facts["version"]), self.path / str(facts["folder"]))

    def publish(self, version: int, write: Callable[[Path], None]) -> Published:
        """Keep a version, tell servers of it, and drop those that nobody needs any more.

        Args:
            write: fills the folder of the version.
        """
        name = f"versions/{version:06d}"
        write_folder(self.path / name, write)
        write_json(self.path / "published.json", {"version": version, "folder": name})
        for old in sorted((self.path / "versions").glob("[0-9]*"))[:-_KEPT]:
            remove_folder(old)
        return Published(version, self.path / name)
