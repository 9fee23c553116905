"""The size of folders that somebody else is writing to, looked at as often as that is cheap."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Final

_BLOCK: Final = 512
_LEAST: Final = 4096
"""Bytes that a file or a folder counts at least, so that many empty ones are bounded too."""
_FIRST_SECONDS: Final = 0.2
_SHARE: Final = 20
"""Times the duration of a look that passes until the next one."""


class FolderSize:
    """The bytes that folders take on disk."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = folders
        self._size = 0
        self._next = 0.0

    def look(self, *, now: bool = False) -> int:
        """Return the size as it was at the last look, or with `now` as it is."""
        begun = time.monotonic()
        if now or begun >= self._next:
            self._size = sum(map(_size, self._folders))
            done = time.monotonic()
            self._next = done + max(_FIRST_SECONDS, _SHARE * (done - begun))
        return self._size


def _size(folder: str) -> int:
    total, waiting = 0, [folder]
    while waiting:
        try:
            entries = os.scandir(waiting.pop())
        except OSError:  # removed meanwhile, or closed to us
            continue
        with entries:
            for entry in entries:
                try:
                    found = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                total += max(_LEAST, found.st_blocks * _BLOCK)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
    return total
