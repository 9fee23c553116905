"""The size of folders that somebody else is writing to, looked at as often as that is cheap."""

from __future__ import annotations

import contextlib
import math
import os
import stat
import sys
import time
from collections.abc import Sequence
from typing import Final

_BLOCK: Final = 512
_LEAST: Final = 4096
"""Bytes that a file or a folder counts at least, so that many empty ones are bounded too."""
DEPTH: Final = 200
"""Folders within folders, beyond which a command has reached its limit of disk."""
_OPEN: Final = stat.S_IRUSR | stat.S_IXUSR
_FIRST_SECONDS: Final = 0.2
_SHARE: Final = 20
"""Times the duration of a look that passes until the next one."""


class FolderSize:
    """The bytes that folders take on disk."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = folders
        self._size = 0.0
        self._next = 0.0

    def look(self, *, now: bool = False) -> float:
        """Return the size as it was at the last look, or with `now` as it is."""
        begun = time.monotonic()
        if now or begun >= self._next:
            self._size = sum(map(_size, self._folders))
            done = time.monotonic()
            self._next = done + max(_FIRST_SECONDS, _SHARE * (done - begun))
        return self._size


def _size(folder: str) -> float:
    """Return the bytes of a folder; infinite if it is nested deeper than its bound."""
    total = 0
    if not os.path.isdir(folder):
        return total
    for place, below, names, opened in os.fwalk(folder):
        if place.count(os.sep) - folder.count(os.sep) > DEPTH:
            return math.inf
        for name in (*below, *names):
            with contextlib.suppress(OSError):  # removed meanwhile
                found = os.stat(name, dir_fd=opened, follow_symlinks=False)
                total += max(_LEAST, found.st_blocks * _BLOCK)
                if stat.S_ISDIR(found.st_mode) and found.st_mode & _OPEN != _OPEN:
                    _open(name, opened, stat.S_IMODE(found.st_mode) | _OPEN)
    return total


def _open(name: str, above: int, mode: int) -> None:
    """Let the owner of a folder see what it holds, without following a link that has taken its place."""
    if sys.platform == "linux":
        folder = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY, dir_fd=above)
        try:
            os.chmod(f"/proc/self/fd/{folder}", mode)
        finally:
            os.close(folder)
