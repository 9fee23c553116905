"""Saved states in a folder, where a server that starts again finds them.

    {folder}/runs/{run}/run.json                   the client's model, rank and metadata
    {folder}/runs/{run}/weights/{name}/            an adapter as peft reads it, the optimizer's state, checkpoint.json
    {folder}/runs/{run}/sampler_weights/{name}/    an adapter and checkpoint.json
    {folder}/.snapshots/                           weights to sample with, until the server ends

A checkpoint is written to a temporary folder, synced and renamed, so it is complete or absent. Its path for clients is
tinker://{run}/weights/{name}, or sampler_weights. The folder is read once, when the server starts; look-ups use memory.

A run belongs to the key that created it: other keys find neither it nor its checkpoints. Runs of a server without keys
are open to all keys, and a server without keys shows all runs.
"""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from ...files import read_json, reading, remove_folder, remove_leftovers, write_folder, write_json
from .settings import NoWeightsError, RefusedError
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
    """Metadata of a client's model."""

    run_id: str
    base_model: str
    shape: AdapterShape
    created: float
    user_metadata: Mapping[str, Any] | None = None
    owner: str = ""
    """Owner name of the key that created it, see `owner_of`; empty if the server needed no key."""

    def is_open_to(self, owner: str) -> bool:
        """Return True if this owner may see it."""
        return not owner or self.owner in ("", owner)


@dataclass(frozen=True)
class SavedCheckpoint:
    """One saved state."""

    run: ClientRun
    kind: Kind
    name: str
    folder: Path
    created: float
    expires: float | None = None

    @property
    def path(self) -> str:
        """Path by which clients refer to it."""
        return f"{SCHEME}{self.run.run_id}/{self.kind}/{self.name}"


class CheckpointFolder:
    """The checkpoints of all clients, of this server and of earlier ones in the same folder. Thread-safe.

    Args:
        folder: created if it does not exist; no other process may write it.
        clock: seconds since 1970.

    Raises:
        UserError: a file of an earlier server is damaged.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._clock = clock
        self._runs: dict[str, ClientRun] = {}
        self._saved: dict[str, SavedCheckpoint] = {}
        """Checkpoints by their paths."""
        self._changing = threading.RLock()
        """Held while a checkpoint is moved into place or removed."""
        shutil.rmtree(folder / _SNAPSHOTS, ignore_errors=True)
        for place in sorted((folder / _RUNS).glob("*/run.json")):
            for kind in KINDS:
                remove_leftovers(place.parent / kind)
            with reading(place, setting="output_dir"):
                about = read_json(place)
                run = ClientRun(**{**about, "shape": AdapterShape(**about["shape"])})
            self._runs[run.run_id] = run
            for kind in KINDS:
                for each in sorted((place.parent / kind).glob("[!.]*")):
                    if (each / _ABOUT).is_file():
                        with reading(each / _ABOUT, setting="output_dir"):
                            self._note(run, kind, each)
        self.sweep()

    @property
    def snapshots(self) -> Path:
        """Folder of snapshots, which are kept while the server runs."""
        return self._folder / _SNAPSHOTS

    def run(self, run_id: str, owner: str) -> ClientRun:
        """Return a training run."""
        run = self._runs.get(run_id)
        if run is None or not run.is_open_to(owner):
            raise NoWeightsError(f"there is no training run {run_id!r}")
        return run

    def begin(self, run: ClientRun) -> None:
        """Add a training run."""
        place = self._place(run.run_id)
        place.mkdir(parents=True, exist_ok=True)
        write_json(place / "run.json", asdict(run), private=True)
        self._runs[run.run_id] = run

    def target(self, run_id: str, kind: Kind, name: str, *, overwrite: bool) -> Path:
        """Return the folder of a checkpoint of this name."""
        if not _NAME.fullmatch(name):
            raise RefusedError(f"a checkpoint cannot be named {name!r}: use up to 128 letters, digits and _.=+-")
        target = self._place(run_id) / kind / name
        if not overwrite and self._current(f"{SCHEME}{run_id}/{kind}/{name}") is not None:
            raise RefusedError(f"there is a checkpoint {name!r} already: choose another name, or overwrite it")
        return target

    def write(
        self,
        run_id: str,
        kind: Kind,
        target: Path,
        save: Callable[[Path], None],
        ttl_seconds: int | None = None,
        user_metadata: Mapping[str, Any] | None = None,
    ) -> SavedCheckpoint:
        """Write a checkpoint by `save`, which is called with an empty folder.

        Args:
            target: as returned by `target`.
        """
        if ttl_seconds is not None and not _HOUR <= ttl_seconds <= _TEN_YEARS:
            raise RefusedError(f"ttl_seconds must be between {_HOUR} and {_TEN_YEARS}, not {ttl_seconds}")
        now = self._clock()
        expires = None if ttl_seconds is None else now + ttl_seconds
        about = {"created": now, "expires": expires, "user_metadata": user_metadata}
        target.parent.mkdir(parents=True, exist_ok=True)

        def fill(folder: Path) -> None:
            save(folder)
            write_json(folder / _ABOUT, about)

        with self._changing:
            write_folder(target, fill)
            return self._note(self._runs[run_id], kind, target)

    def get(self, path: str, owner: str) -> SavedCheckpoint:
        """Return the checkpoint of a path."""
        checkpoint = self._current(path)
        if checkpoint is None or not checkpoint.run.is_open_to(owner):
            raise NoWeightsError(f"there are no weights at {path!r} on this server")
        return checkpoint

    def sweep(self) -> None:
        """Remove expired checkpoints. Accesses the disk."""
        for path, each in list(self._saved.items()):
            if self._current(path) is None:
                self.remove(each)

    def remove(self, checkpoint: SavedCheckpoint) -> None:
        """Remove a checkpoint. Accesses the disk, and waits for one that is being written."""
        with self._changing:
            if self._saved.get(checkpoint.path) == checkpoint:
                del self._saved[checkpoint.path]
                remove_folder(checkpoint.folder)

    def read(self, checkpoint: SavedCheckpoint, load: Callable[[Path], None]) -> None:
        """Call `load` with the folder of a checkpoint, which is not removed or overwritten meanwhile."""
        with self._changing:
            if self._saved.get(checkpoint.path) != checkpoint:
                raise NoWeightsError(f"there are no weights at {checkpoint.path!r} any more")
            load(checkpoint.folder)

    def _note(self, run: ClientRun, kind: Kind, folder: Path) -> SavedCheckpoint:
        about = read_json(folder / _ABOUT)
        checkpoint = SavedCheckpoint(run, kind, folder.name, folder, about["created"], about["expires"])
        self._saved[checkpoint.path] = checkpoint
        return checkpoint

    def _current(self, path: str) -> SavedCheckpoint | None:
        """Return the checkpoint of a path; None if there is none, or it has expired."""
        checkpoint = self._saved.get(path)
        if checkpoint is not None and checkpoint.expires is not None and checkpoint.expires <= self._clock():
            return None
        return checkpoint

    def _place(self, run_id: str) -> Path:
        return self._folder / _RUNS / run_id.replace(":", "_")
