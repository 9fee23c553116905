"""Files that an agent may not change: compared with those of the task once it has ended, and put back.

Tests that the task shows are such files, and so is what steers a test runner from outside of the tests. A link in the
place of a folder is removed, so that nothing is written through it.
"""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from .scratch import HISTORY

TESTS: Final = (
    *("tests/**", "test/**", "**/tests/**", "**/test/**", "**/__tests__/**"),
    *("**/test_*.py", "**/*_test.py", "**/*.test.*", "**/*.spec.*", "**/*_test.go"),
)
"""Tests that the task shows: changes are undone, and new ones left out."""
STEERING: Final = (
    *("**/conftest.py", "**/sitecustomize.py", "**/usercustomize.py", "**/*.pth"),
    *("**/pytest.ini", "**/.pytest.ini", "**/pytest.toml", "**/tox.ini"),
    *("pytest.py", "pytest/**", "_pytest/**", "unittest.py", "unittest/**", "pluggy/**", "pluggy.py"),
    *("**/jest.config.*", "**/vitest.config.*", "**/.mocharc.*", "**/.npmrc"),
)
"""Files by which tests could be made to pass without anything being mended: a new one is a change, too."""


def changed_files(workspace: Path, source: Path | None) -> list[str]:
    """Return the files that differ from those of the task, were added or are gone; relative, in order."""
    now, before = set(_files(workspace)), set() if source is None else set(_files(source))
    both = {name for name in now & before if source is not None and not _same(source / name, workspace / name)}
    return sorted((now ^ before) | both)


def restore_protected(workspace: Path, source: Path | None, changed: Sequence[str], more: Sequence[str]) -> list[str]:
    """Put protected files back as the task has them; return those that the agent tampered with.

    A test that the agent has added is removed, and no tampering: agents may write tests of their own.

    Args:
        changed: see `changed_files`.
        more: further patterns, of the task.
    """
    tampered = []
    for name in changed:
        is_old = source is not None and os.path.lexists(source / name)
        is_steering = _matches(name, (*STEERING, *more))
        if not (is_steering or _matches(name, TESTS)):
            continue
        if is_old or is_steering:
            tampered.append(name)
        _remove(workspace, name)
        if is_old and source is not None:
            target = workspace / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target, follow_symlinks=False)
    return tampered


def _matches(name: str, patterns: Sequence[str]) -> bool:
    """Return True if a pattern fits; `**/` stands for any folders, or none."""
    return any(
        fnmatchcase(name, pattern) or (pattern.startswith("**/") and fnmatchcase(name, pattern[3:]))
        for pattern in patterns
    )


def _files(folder: Path) -> Iterator[str]:
    """Yield files and links, without following any link, as names relative to the folder."""
    for place, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        folders[:] = [name for name in folders if name not in links and name not in (*HISTORY, "__pycache__")]
        for name in (*names, *links):
            yield os.path.relpath(os.path.join(place, name), folder).replace(os.sep, "/")


def _same(one: Path, other: Path) -> bool:
    if one.is_symlink() or other.is_symlink():
        return one.is_symlink() and other.is_symlink() and os.readlink(one) == os.readlink(other)
    try:
        return one.is_file() and other.is_file() and filecmp.cmp(one, other, shallow=False)
    except OSError:  # the agent has closed it
        return False


def _remove(workspace: Path, name: str) -> None:
    """Remove what stands under a name, and before that any link or file in the place of a folder above it."""
    place = workspace
    *above, last = name.split("/")
    for part in above:
        place = place / part
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            place.unlink()
            return
    place = place / last
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
    elif os.path.lexists(place):
        place.unlink()
