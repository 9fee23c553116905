"""Saved states in a folder, where a server that starts again finds them.

    {folder}/runs/{run}/run.json                   the client's model, rank and metadata
    {folder}/runs/{run}/weights/{name}/            an adapter as peft reads it, the optimizer's state, checkpoint.json
    {folder}/runs/{run}/sampler_weights/{name}/    an adapter and checkpoint.json
    {folder}/.snapshots/                           weights to sample with, until the server ends

A checkpoint is written beside its place, synced and renamed: it is there whole or not at all. Its path for clients is
tinker://{run}/weights/{name}, or sampler_weights.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from ..files import read_json, reading, remove_folder, remove_leftovers, write_folder, write_json
from .errors import RefusedError
from .training import AdapterShape

Kind = Literal["weights", "sampler_weights"]

KINDS: Final[tuple[Kind, ...]] = ("weights", "sampler_weights")
SCHEME: Final = "tinker://"
_RUNS: Final = "runs"
_SNAPSHOTS: Final = ".snapshots"
_ABOUT: Final = "checkpoint.json"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=+-]{0,127}")
_HOUR, _TEN_YEARS = 3600, 10 * 366 * 24 * 3600


@dataclass(frozen=True)
class ClientRun:
    """A client's model, as it is remembered."""

    run_id: str
    base_model: str
    shape: AdapterShape
    created: float
    user_metadata: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class SavedCheckpoint:
    """One saved state."""

    run: ClientRun
    kind: Kind
    name: str
    folder: Path
    created: float
    size: int
    expires: float | None = None
    user_metadata: Mapping[str, Any] | None = None

    @property
    def path(self) -> str:
        """The name that clients have for it."""
        return f"{SCHEME}{self.run.run_id}/{self.kind}/{self.name}"


class CheckpointFolder:
    """The checkpoints of all clients, of this server and of those before it in the same folder.

    Args:
        folder: made if need be; nobody else writes it meanwhile.
        clock: seconds since 1970.

    Raises:
        UserError: what an earlier server wrote is damaged.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._clock = clock
        self._runs: dict[str, ClientRun] = {}
        shutil.rmtree(folder / _SNAPSHOTS, ignore_errors=True)
        for place in sorted((folder / _RUNS).glob("*/run.json")):
            for kind in KINDS:
                remove_leftovers(place.parent / kind)
            with reading(place, setting="output_dir"):
                about = read_json(place)
                run = ClientRun(**{**about, "shape": AdapterShape(**about["shape"])})
            self._runs[run.run_id] = run
        for checkpoint in self.all():
            self._unless_expired(checkpoint)

    @property
    def snapshots(self) -> Path:
        """Folder for weights that are only sampled with while the server runs."""
        return self._folder / _SNAPSHOTS

    @property
    def runs(self) -> list[ClientRun]:
        """All training runs, the latest first."""
        return sorted(self._runs.values(), key=lambda run: run.created, reverse=True)

    def run(self, run_id: str) -> ClientRun:
        """Return a training run.

        Raises:
            RefusedError: there is none of this id.
        """
        if run_id not in self._runs:
            raise RefusedError(f"there is no training run {run_id!r}")
        return self._runs[run_id]

    def begin(self, run: ClientRun) -> None:
        """Remember a training run."""
        place = self._place(run.run_id)
        place.mkdir(parents=True, exist_ok=True)
        write_json(place / "run.json", asdict(run))
        self._runs[run.run_id] = run

    def target(self, run_id: str, kind: Kind, name: str, *, overwrite: bool) -> Path:
        """Return where a checkpoint of this name goes.

        Raises:
            RefusedError: the name cannot be that of a folder, or is taken.
        """
        if not _NAME.fullmatch(name):
            raise RefusedError(f"a checkpoint cannot be named {name!r}: use up to 128 letters, digits and _.=+-")
        target = self._place(run_id) / kind / name
        if target.exists() and not overwrite and self.find(f"{SCHEME}{run_id}/{kind}/{name}") is not None:
            raise RefusedError(f"there is a checkpoint {name!r} already: choose another name, or overwrite it")
        return target

    def write(
        self,
        target: Path,
        save: Callable[[Path], None],
        ttl_seconds: int | None = None,
        user_metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a checkpoint by `save`, which is given an empty folder.

        Raises:
            RefusedError: it would live for less than an hour or more than ten years.
        """
        now = self._clock()
        about = {"created": now, "expires": self._expiry(ttl_seconds), "user_metadata": user_metadata}
        target.parent.mkdir(parents=True, exist_ok=True)

        def fill(folder: Path) -> None:
            save(folder)
            write_json(folder / _ABOUT, about)

        write_folder(target, fill)

    def get(self, path: str) -> SavedCheckpoint:
        """Return the checkpoint of a path.

        Raises:
            RefusedError: there is none.
        """
        found = self.find(path)
        if found is None:
            raise RefusedError(f"there are no weights at {path!r} on this server")
        return found

    def find(self, path: str) -> SavedCheckpoint | None:
        """Return the checkpoint of a path, if it is there and has not expired."""
        parts = path.removeprefix(SCHEME).split("/")
        if not path.startswith(SCHEME) or len(parts) != 3 or parts[0] not in self._runs:
            return None
        run_id, kind, name = parts
        for known in KINDS:
            if kind == known and _NAME.fullmatch(name):
                checkpoint = self._read(self._runs[run_id], known, self._place(run_id) / kind / name)
                return None if checkpoint is None else self._unless_expired(checkpoint)
        return None

    def all(self, run_id: str | None = None) -> list[SavedCheckpoint]:
        """Return all checkpoints, or those of a run, the latest first."""
        found = [each for run in self._runs.values() if run_id in (None, run.run_id) for each in self._of(run)]
        return sorted(found, key=lambda each: each.created, reverse=True)

    def remove(self, checkpoint: SavedCheckpoint) -> None:
        """Remove a checkpoint."""
        remove_folder(checkpoint.folder)

    def keep_for(self, checkpoint: SavedCheckpoint, ttl_seconds: int | None) -> None:
        """Let a checkpoint live for so long from now on; None is for ever.

        Raises:
            RefusedError: see `write`.
        """
        about = read_json(checkpoint.folder / _ABOUT)
        write_json(checkpoint.folder / _ABOUT, about | {"expires": self._expiry(ttl_seconds)})

    def _expiry(self, ttl_seconds: int | None) -> float | None:
        if ttl_seconds is None:
            return None
        if not _HOUR <= ttl_seconds <= _TEN_YEARS:
            raise RefusedError(f"ttl_seconds must be between {_HOUR} and {_TEN_YEARS}, not {ttl_seconds}")
        return self._clock() + ttl_seconds

    def _of(self, run: ClientRun) -> Iterator[SavedCheckpoint]:
        for kind in KINDS:
            for folder in sorted((self._place(run.run_id) / kind).glob("[!.]*")):
                found = self._read(run, kind, folder)
                if found is not None:
                    yield found

    def _read(self, run: ClientRun, kind: Kind, folder: Path) -> SavedCheckpoint | None:
        if not (folder / _ABOUT).is_file():
            return None
        about = read_json(folder / _ABOUT)
        size = sum(file.stat().st_size for file in folder.iterdir())
        return SavedCheckpoint(
            run, kind, folder.name, folder, about["created"], size, about["expires"], about["user_metadata"]
        )

    def _unless_expired(self, checkpoint: SavedCheckpoint) -> SavedCheckpoint | None:
        if checkpoint.expires is None or checkpoint.expires > self._clock():
            return checkpoint
        self.remove(checkpoint)
        return None

    def _place(self, run_id: str) -> Path:
        return self._folder / _RUNS / run_id.replace(":", "_")
