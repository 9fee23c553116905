"""The part of `serve` that stores sessions and serves the versions that were learnt from them."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...commands import ServeSettings
from ...errors import UserError, log_failure
from ...files import make_private_folder, read_json, remove_folder, write_folder, write_json
from ...gateway import ServedPolicy
from ...policy import load_weights
from ...store import LightningStore, LightningStoreThreaded, open_store
from .record import is_session

# The folder of a server that learns from use.
#
# sessions.db       the store, unless another is named
# serving.json      what is served: model, adapter, name
# published.json    the newest version, and its folder
# versions/000012/  weights, optimizer and state of a version; each is written whole, or not at all


logger = logging.getLogger(__name__)

_KEPT: Final = 3
"""Versions that are kept: a server may be reading the previous one."""
_PAGE: Final = 256
_LOOK_SECONDS: Final = 1.0
_SWEEP_SECONDS: Final = 3600.0


@dataclass(frozen=True)
class Published:
    """A version that was learnt."""

    version: int
    folder: Path


class UseFolder:
    """The files of a server that learns from use. Written by one learner; read by servers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store_path = path / "sessions.db"
        """File of the store, unless another is named."""
        self.metrics_path = path / "metrics.jsonl"
        """File of the learner's metrics."""
        self._serving_path = path / "serving.json"

    @property
    def is_begun(self) -> bool:
        """True if a server has recorded sessions here."""
        return self._serving_path.is_file()

    def write_serving(self, facts: Mapping[str, Any]) -> None:
        """Write the served model, adapter and name, in a folder that only this user can read.

        Raises:
            UserError: the folder cannot be written.
        """
        try:
            make_private_folder(self.path)
            write_json(self._serving_path, facts)
        except OSError as error:
            raise UserError(f"{self.path} cannot be written: {error.strerror}", setting="learn_from_use") from error

    def read_serving(self) -> dict[str, Any]:
        """Return the served model, adapter and name.

        Raises:
            UserError: no server has ever recorded sessions here.
        """
        if not self.is_begun:
            raise UserError(
                f"{self.path} holds no sessions: begin with `serve --learn-from-use {self.path}`, which records them"
            )
        return read_json(self._serving_path)

    def published(self) -> Published | None:
        """Return the newest version; None before the first."""
        path = self.path / "published.json"
        if not path.is_file():
            return None
        facts = read_json(path)
        return Published(int(facts["version"]), self.path / str(facts["folder"]))

    def publish(self, version: int, write: Callable[[Path], None]) -> Published:
        """Publish a version and remove old ones.

        Args:
            write: fills the folder of the version.
        """
        name = f"versions/{version:06d}"
        write_folder(self.path / name, write)
        write_json(self.path / "published.json", {"version": version, "folder": name})
        for old in sorted((self.path / "versions").glob("[0-9]*"))[:-_KEPT]:
            remove_folder(old)
        return Published(version, self.path / name)


async def delete_old(store: LightningStore, keep_days: float) -> int:
    """Delete the sessions that were opened more than `keep_days` ago; return their number, which is logged."""
    oldest, offset, deleted = time.time() - keep_days * 86_400, 0, 0
    while True:
        page = list(await store.query_rollouts(sort_by="start_time", limit=_PAGE, offset=offset))
        old = [rollout for rollout in page if rollout.start_time < oldest]
        gone = await store.delete_rollouts([each.rollout_id for each in old if is_session(each.rollout_id)])
        deleted += len(gone)
        offset += len(old) - len(gone)
        if len(old) < _PAGE:
            if deleted:
                logger.info("%d sessions of more than %g days were deleted", deleted, keep_days)
            return deleted


class UseOfServer:
    """Sessions of a server, in a folder.

    Args:
        settings: of the server; they name the folder.

    Raises:
        UserError: the folder cannot be made, or belongs to another model.
    """

    def __init__(self, settings: ServeSettings) -> None:
        if settings.learn_from_use is None:
            raise UserError("sessions need a folder", setting="learn_from_use")
        self.folder = UseFolder(settings.learn_from_use)
        self._settings = settings
        load = settings.load
        before = self.folder.read_serving() if self.folder.is_begun else {}
        if before and before["model"] != load.model:
            raise UserError(
                f"{self.folder.path} holds sessions with {before['model']}, not with {load.model}: "
                "choose another folder for another model",
                setting="learn_from_use",
            )

    @contextmanager
    def of(self, served: ServedPolicy, published: Published | None) -> Iterator[dict[str, Any]]:
        """Yield the server's arguments for sessions, and serve new versions, within the block; then close `served`.

        Args:
            served: the policy, with the adapter of `published`.
            published: the newest version at loading.

        Raises:
            UserError: the folder cannot be written, or the store cannot be opened.
        """
        settings, model = self._settings, served.policy.model
        where = settings.session_store or str(self.folder.store_path.absolute())
        adapter = None if settings.load.adapter is None else str(settings.load.adapter.resolve())
        facts = {"model": settings.load.model, "adapter": adapter, "name": served.name, "store": where}
        self.folder.write_serving(facts)
        if published is not None:
            served.policy.run(lambda: model.versions.update({model.adapters[0]: published.version}))
        store = LightningStoreThreaded(open_store(where))
        stop = threading.Event()
        jobs: list[tuple[str, float, Callable[[], object]]] = [
            ("versions", _LOOK_SECONDS, lambda: follow(served, self.folder)),
            ("retention", _SWEEP_SECONDS, lambda: asyncio.run(delete_old(store, settings.sessions.keep_days))),
        ]
        threads = [threading.Thread(target=_repeat, args=(stop, *job), name=job[0], daemon=True) for job in jobs]
        for thread in threads:
            thread.start()
        try:
            yield {"store": store, "sessions": settings.sessions}
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            served.close(settings.server.drain_seconds)  # requests in progress are still recorded
            asyncio.run(store.close())


def follow(served: ServedPolicy, folder: UseFolder) -> bool:
    """Serve the newest version; return False if it is served already.

    Raises:
        UserError: its weights do not fit, or are damaged.
    """
    model = served.policy.model
    published, adapter = folder.published(), model.adapters[0]
    if published is None or published.version <= model.version(adapter):
        return False

    def take() -> None:
        load_weights(model, published.folder / "adapter", adapter)
        model.versions[adapter] = published.version

    served.policy.run(take)
    logger.info("serving version %d of %s", published.version, folder.path)
    return True


def _repeat(stop: threading.Event, name: str, seconds: float, job: Callable[[], object]) -> None:
    last_error: str | None = None
    while not stop.is_set():
        try:
            job()
            last_error = None
        except Exception as error:  # a damaged folder or store must not end the server
            if str(error) != last_error:
                log_failure(logger, error, f"{name} of the sessions")
            last_error = str(error)
        stop.wait(seconds)
