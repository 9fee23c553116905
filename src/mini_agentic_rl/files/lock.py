"""One writing process per folder: a lock that ends with its process.

    with one_writer(folder):
        ...                                                          # a second process gets a UserError

The lock is that of the operating system (`flock`, on Windows `msvcrt.locking`) on the open file `.lock`, so a process
that dies leaves no lock behind, even if the file stays. The file names the holder. Inside of the block a second
`one_writer` of the same folder does nothing. On a file system without locks it logs a warning and goes on; locks on NFS
are effective across hosts.
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
"""Name of the lock file in its folder."""
_HELD: Final = (errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK, errno.EDEADLK)
_UNSUPPORTED: Final = (errno.ENOLCK, errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)
_WINDOWS_OFFSET: Final = 1 << 30
"""A byte far behind the text, because other processes cannot read a locked byte on Windows."""

_held: ContextVar[frozenset[str]] = ContextVar("folders_written", default=frozenset())
_descriptors: set[int] = set()
_folders: set[str] = set()
"""Folders that are locked: a task may outlive the block in which it was started."""


@contextmanager
def one_writer(folder: Path, *, beside: bool = False, setting: str = "output_dir") -> Iterator[None]:
    """Lock a folder for the duration of a block; a missing folder is made.

    Args:
        folder: the folder.
        beside: put the lock file beside the folder as `.NAME.lock`, for a folder that is replaced as a whole.
        setting: name of the setting that chose the folder.

    Raises:
        UserError: another process has the lock (the message names process, host and time), or the folder cannot be
            written.
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
        with contextlib.suppress(ValueError):  # the generator is closed in another context
            _held.reset(token)
        _release(path, descriptor)


def is_written(folder: Path) -> bool:
    """Return True if the lock file of a folder names a running process, or one of another host."""
    try:
        holder = json.loads((folder / LOCK_FILE).read_text(encoding="utf-8"))
        return holder["host"] != socket.gethostname() or bool(psutil.pid_exists(int(holder["pid"])))
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError):  # the holder has not written its name yet
        return True


def _acquired(path: Path) -> int:
    """Return the descriptor of the locked file.

    Raises:
        BlockingIOError: another process holds it; the text names the process.
        OSError: it cannot be written.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(descriptor, path)
            if _is_still(path, descriptor):  # else its holder has removed it meanwhile
                os.ftruncate(descriptor, 0)
                since = datetime.now().astimezone().isoformat(timespec="seconds")
                holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
                os.write(descriptor, json.dumps(holder).encode())
                _descriptors.add(descriptor)
                return descriptor
        except OSError as error:
            text = _holder(descriptor)
            os.close(descriptor)
            if error.errno in _HELD:
                raise BlockingIOError(errno.EAGAIN, text) from None
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
    if descriptor not in _descriptors:  # a fork of the holder
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


def _holder(descriptor: int) -> str:
    """Return the holder of a lock in words."""
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        holder = json.loads(os.read(descriptor, 4096))
        return f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):  # the holder has not written its name yet
        return "a process that has just begun"


def _close_in_fork() -> None:
    """Close the descriptors in a forked process, which would keep the locks of its parent."""
    while _descriptors:
        with contextlib.suppress(OSError):
            os.close(_descriptors.pop())
    _held.set(frozenset())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_fork)
