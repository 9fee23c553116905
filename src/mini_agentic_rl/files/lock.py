"""One writer for a folder: a lock that ends with its process, and that tells the next one who holds it.

    with one_writer(folder):
        ...                                                          # a second one is refused with a UserError

The lock is the operating system's (`flock`, on Windows `msvcrt.locking`) on the file `.lock`, held open: a process that
dies, however it does, leaves none behind, whether or not the file stays. The file says who holds it. Within the block a
second `one_writer` of the same folder is part of the first. A file system that knows no locks is warned of and written
without one; the locks of NFS hold across its hosts.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from pathlib import Path
from typing import Final

import psutil

from ..errors import UserError
from .atomic import make_private_folder

logger = logging.getLogger(__name__)

LOCK_FILE: Final = ".lock"
"""Name of the lock in the folder that it guards."""
_HELD: Final = (errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK, errno.EDEADLK)
_UNSUPPORTED: Final = (errno.ENOLCK, errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)
_WINDOWS_OFFSET: Final = 1 << 30
"""A byte far behind the text: what is locked on Windows cannot be read by others."""

_held: ContextVar[frozenset[str]] = ContextVar("folders_written", default=frozenset())
_descriptors: set[int] = set()
_folders: set[str] = set()
"""Those that are held now: a task may outlive the block that it was started in."""


@contextmanager
def one_writer(folder: Path, *, beside: bool = False, setting: str = "output_dir") -> Iterator[None]:
    """Be the only writer of a folder, which is made if it is not there; the lock file is gone after the block.

    Args:
        beside: keep the lock beside the folder as `.NAME.lock`, for a folder that is replaced as a whole.
        setting: name of the setting that chose the folder.

    Raises:
        UserError: another one writes there (the message says which process, where, and since when), or the folder
            cannot be written.
    """
    place = Path(os.path.realpath(folder.expanduser()))
    key = str(place)
    if key in _held.get() and key in _folders:
        yield
        return
    path = place.with_name(f".{place.name}{LOCK_FILE}") if beside else place / LOCK_FILE
    if place.exists() and not place.is_dir():
        raise UserError(f"{folder} is a file: choose a folder", setting=setting)
    try:
        make_private_folder(path.parent)
        descriptor = _acquired(path)
    except BlockingIOError as error:
        raise UserError(
            f"{folder} is being written by another run: {error.strerror}; wait for its end, or choose another folder",
            setting=setting,
        ) from None
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}", setting=setting) from error
    _folders.add(key)
    token = _held.set(_held.get() | {key})
    try:
        yield
    finally:
        _folders.discard(key)
        with contextlib.suppress(ValueError):  # a generator may be closed in another context than it began in
            _held.reset(token)
        _release(path, descriptor)


def is_written(folder: Path) -> bool:
    """Return True if a process writes a folder, as far as its lock file tells to one that only looks.

    Of a process on this computer that has died it is not written; one on another computer is believed.
    """
    try:
        found = json.loads((folder / LOCK_FILE).read_text(encoding="utf-8"))
        return found["host"] != socket.gethostname() or bool(psutil.pid_exists(int(found["pid"])))
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError):  # it has just begun
        return True


def _acquired(path: Path) -> int:
    """Return the descriptor of the locked file.

    Raises:
        BlockingIOError: another one holds it; its text says who.
        OSError: it cannot be written.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(descriptor, path)
            if _is_still(path, descriptor):  # else its holder has just removed it, and the next one has a new file
                # Written over what a dead process has left: it may be longer, and a file of none is told as unknown.
                os.ftruncate(descriptor, 0)
                os.write(descriptor, json.dumps(_myself()).encode())
                _descriptors.add(descriptor)
                return descriptor
        except OSError as error:
            holder = _told(descriptor)
            os.close(descriptor)
            if error.errno in _HELD:
                raise BlockingIOError(errno.EAGAIN, holder) from None
            raise
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    """Lock an open file, without waiting."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(descriptor, _WINDOWS_OFFSET, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            os.lseek(descriptor, 0, os.SEEK_SET)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        logger.warning(
            "%s cannot be locked on this file system (%s): nothing keeps a second run from writing there as well",
            path.parent,
            error.strerror,
        )


def _release(path: Path, descriptor: int) -> None:
    if descriptor not in _descriptors:  # this is a fork of the process that holds it
        return
    _descriptors.discard(descriptor)
    # The folder may have been removed, and made again by another process.
    is_ours = _is_still(path, descriptor)
    if sys.platform == "win32":  # where no open file is removed: one that another process has opened meanwhile stays
        os.close(descriptor)
    if is_ours:
        with contextlib.suppress(OSError):
            path.unlink()
    if sys.platform != "win32":
        os.close(descriptor)


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _myself() -> dict[str, str | int]:
    since = datetime.now().astimezone().isoformat(timespec="seconds")
    return {"pid": os.getpid(), "host": socket.gethostname(), "since": since}


def _told(descriptor: int) -> str:
    """Say who holds a lock."""
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        found = json.loads(os.read(descriptor, 4096))
        return f"process {found['pid']} on {found['host']} since {found['since']}"
    except (OSError, ValueError, KeyError, TypeError):  # it has just begun
        return "a process that has just begun"


def _close_in_fork() -> None:
    """A forked process must not keep its parent's locks alive."""
    while _descriptors:
        with contextlib.suppress(OSError):
            os.close(_descriptors.pop())
    _held.set(frozenset())


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_close_in_fork)
