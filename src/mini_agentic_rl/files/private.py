"""Files and folders that hold keys or conversations: for the user who made them alone, whatever the umask says."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700


def make_private_folder(path: str | Path) -> None:
    """Make a folder, with those above it that are missing, for this user alone; one that is there stays as it is.

    Raises:
        OSError: it cannot be made.
    """
    folder = Path(path)
    if folder.is_dir():
        return
    if folder.exists():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    make_private_folder(folder.parent)
    folder.mkdir(mode=FOLDER_MODE, exist_ok=True)


def make_private_file(path: str | Path) -> None:
    """Make an empty file for this user alone; take the rights of others from one that is there and this user's.

    Raises:
        OSError: it cannot be made.
    """
    handle = os.open(path, os.O_CREAT | os.O_RDWR | getattr(os, "O_CLOEXEC", 0), FILE_MODE)
    try:
        # Windows keeps rights in another way, and has no fchmod before Python 3.13
        if os.name == "posix" and os.fstat(handle).st_uid == os.geteuid():
            os.fchmod(handle, FILE_MODE)
    finally:
        os.close(handle)


def private_opener(path: str, flags: int) -> int:
    """Open a file for this user alone: an `opener` of `open`."""
    return os.open(path, flags, FILE_MODE)
