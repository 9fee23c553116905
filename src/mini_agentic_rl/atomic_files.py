"""Write files and folders whole or not at all: under a temporary name, synced to disk, then renamed.

A process killed at any instant leaves the old file or folder, or the new one; `remove_leftovers` clears away what it
was in the middle of.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_PARTIAL = ".partial-"
_REPLACED = ".replaced-"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_WORDS = ("no space left", "os error 28", "disk quota exceeded", "os error 122")
_FULL_BELOW = 1 << 20


class DiskFullError(OSError):
    """Report that a write ran out of disk space or quota; what was there before is untouched."""


def write_folder(target: Path, write: Callable[[Path], None]) -> None:
    """Fill `target` by `write`, which is given an empty temporary folder beside it.

    Raises:
        DiskFullError: there was no space left.
        Exception: whatever else `write` raised. In both cases the temporary folder is removed and an earlier `target`
            is untouched.
    """
    partial = target.with_name(_PARTIAL + target.name)
    replaced = target.with_name(_REPLACED + target.name)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        write(partial)
        _sync_tree(partial)
    except BaseException as error:
        full = isinstance(error, Exception) and _is_disk_full(error, target.parent)
        shutil.rmtree(partial, ignore_errors=True)
        if full:
            raise DiskFullError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target)) from error
        raise
    if target.exists():
        os.replace(target, replaced)
    os.replace(partial, target)
    _sync(target.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file.

    Raises:
        OSError: it cannot be written; an earlier file is untouched.
    """
    partial = path.with_name(_PARTIAL + path.name)
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    os.replace(partial, path)
    _sync(path.parent)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object.

    Raises:
        OSError: it cannot be written; an earlier file is untouched.
        TypeError: a value is no JSON value.
    """
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty if there is no such file.

    Raises:
        ValueError: the file holds something else.
    """
    if not path.exists():
        return {}
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def remove_leftovers(folder: Path) -> None:
    """Clear away what a killed process was writing into `folder`, and bring back what it was just replacing."""
    if not folder.is_dir():
        return
    for replaced in folder.glob(_REPLACED + "*"):
        original = folder / replaced.name.removeprefix(_REPLACED)
        if original.exists():
            shutil.rmtree(replaced, ignore_errors=True)
        else:  # killed between the two renames
            os.replace(replaced, original)
    for partial in folder.glob(_PARTIAL + "*"):
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)


def _sync_tree(folder: Path) -> None:
    for root, _, files in os.walk(folder):
        for name in files:
            with open(os.path.join(root, name), "r+b") as file:
                os.fsync(file.fileno())
        _sync(Path(root))


def _sync(folder: Path) -> None:
    if os.name != "posix":  # elsewhere a folder cannot be opened for syncing
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_disk_full(error: Exception, folder: Path) -> bool:
    """Return True if a failed write ran out of space; asked before anything is removed.

    safetensors and torch turn the OSError into errors of their own, torch without saying why.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _FULL:
            return True
        if any(words in str(cause).lower() for words in _FULL_WORDS):
            return True
        cause = cause.__cause__ or cause.__context__
    return shutil.disk_usage(folder).free < _FULL_BELOW
