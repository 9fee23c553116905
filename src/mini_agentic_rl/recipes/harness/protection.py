"""The folder that tests run in: a new copy of the task's files with the results of the agent, and nothing else of it.

Tests that the task shows, and files that steer a test runner from outside of the tests, are those of the task. Whoever
knows which files the agent is to write declares them as `results`: then only these are taken.
"""

from __future__ import annotations

import errno
import filecmp
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from .scratch import HISTORY, copy_task
from .tasks import VerifierTable

TESTS: Final = (
    *("tests/**", "test/**", "**/tests/**", "**/test/**", "**/__tests__/**"),
    *("**/test_*.py", "**/*_test.py", "**/*.test.*", "**/*.spec.*", "**/*_test.go"),
    *("**/*.dist-info/**", "**/*.egg-info/**", "**/.pytest_cache/**", "**/node_modules/**"),
)
"""Tests that the task shows, and what tools make: changes are undone, and new ones left out."""
STEERING: Final = (
    *("**/conftest.py", "**/sitecustomize.py", "**/usercustomize.py", "**/*.pth", "**/.coveragerc"),
    *("**/pytest.ini", "**/.pytest.ini", "**/pytest.toml", "**/.pytest.toml", "**/tox.ini"),
    *("**/pyproject.toml", "**/setup.cfg", "**/GNUmakefile"),
    *("pytest.py", "pytest/**", "_pytest/**", "unittest.py", "unittest/**", "pluggy/**", "pluggy.py"),
    *("**/jest.config.*", "**/vitest.config.*", "**/.mocharc.*", "**/.npmrc"),
)
"""Files by which tests could be made to pass without anything being mended: a new one is a change, too."""


def changed_files(workspace: Path, source: Path | None) -> list[str]:
    """Return the files that differ from those of the task, were added or are gone; relative, in order. An empty folder
    is a name that ends with a slash."""
    now, before = set(_files(workspace)), set() if source is None else set(_files(source))
    both = {name for name in now & before if source is not None and not _same(source / name, workspace / name)}
    return sorted((now ^ before) | both)


def fill_test_folder(
    folder: Path, workspace: Path, source: Path | None, changed: Sequence[str], verifier: VerifierTable
) -> list[str]:
    """Copy the task's files into an empty folder, and the agent's results over them; return what it tampered with.

    A test that the agent has added is left out, and no tampering: agents may write tests of their own.

    Args:
        changed: see `changed_files`.
        verifier: patterns of further protected files, and of results.
    """
    copy_task(source, folder)
    tampered = []
    for name in sorted(changed, key=lambda name: (os.path.lexists(workspace / name), name)):  # what is gone comes first
        is_old = source is not None and os.path.lexists(source / name)
        is_steering = _matches(name, (*STEERING, *verifier.protected)) and name not in verifier.results
        if is_steering or _matches(name, TESTS):
            if is_old or is_steering:
                tampered.append(name)
        elif not verifier.results or _matches(name, verifier.results):
            _take(name, workspace, folder)
    _remove_links_out(folder, source)
    return sorted(tampered)


def added_modules(folder: Path, source: Path | None, changed: Sequence[str]) -> list[str]:
    """Return the Python modules in the folder of the tests that the task does not have, without their suffixes."""
    found = set()
    for name in changed:
        parts = name.rstrip("/").split("/")
        for depth in range(1, len(parts) + 1):
            place = "/".join(parts[:depth])
            if (source is None or not os.path.lexists(source / place)) and os.path.lexists(folder / place):
                found.add("/".join((*parts[: depth - 1], parts[depth - 1].partition(".")[0])))
                if parts[depth - 1].startswith("__init__."):
                    found.add("/".join(parts[: depth - 1]))
    return sorted(found - {""})


def _matches(name: str, patterns: Sequence[str]) -> bool:
    """Return True if a pattern fits; `**/` stands for any folders, or none."""
    return any(
        fnmatchcase(name, pattern) or (pattern.startswith("**/") and fnmatchcase(name, pattern[3:]))
        for pattern in patterns
    )


def _files(folder: Path) -> Iterator[str]:
    """Yield files, links and empty folders, without following any link, as names relative to the folder."""
    for place, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        folders[:] = [name for name in folders if name not in links and name not in (*HISTORY, "__pycache__")]
        for name in (*names, *links):
            yield os.path.relpath(os.path.join(place, name), folder).replace(os.sep, "/")
        if not (folders or names or links) and Path(place) != folder:
            yield os.path.relpath(place, folder).replace(os.sep, "/") + "/"


def _same(one: Path, other: Path) -> bool:
    if one.is_symlink() or other.is_symlink():
        return one.is_symlink() and other.is_symlink() and os.readlink(one) == os.readlink(other)
    if one.is_dir() and other.is_dir():
        return True
    try:
        alike = one.is_file() and other.is_file() and filecmp.cmp(one, other, shallow=False)
        return alike and not (one.stat().st_mode ^ other.stat().st_mode) & 0o100
    except OSError:  # the agent has closed it
        return False


def _take(name: str, workspace: Path, folder: Path) -> None:
    """Make what stands under a name in `folder` what it is in the workspace. What is neither file, folder nor link is
    left out, as is what a protected file is in the way of; nothing is written through a link."""
    source, target = workspace / name, folder / name
    if Path(os.path.realpath(target.parent)) != Path(os.path.realpath(folder), os.path.dirname(name.rstrip("/"))):
        return
    is_folder = source.is_dir() and not source.is_symlink()
    try:
        if os.path.lexists(target) and not is_folder:
            target.rmdir() if target.is_dir() and not target.is_symlink() else target.unlink()
        if is_folder:
            target.mkdir(parents=True, exist_ok=True)
        elif source.is_symlink() or source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            if not source.is_symlink():  # its owner may have closed it
                source.chmod(stat.S_IMODE(source.stat().st_mode) | stat.S_IRUSR)
            shutil.copy2(source, target, follow_symlinks=False)
    except (FileExistsError, NotADirectoryError):
        return
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise


def _remove_links_out(folder: Path, source: Path | None) -> None:
    """Remove links that lead out of a folder, unless the task has them: tests would read their own secrets by them."""
    root = Path(os.path.realpath(folder))
    for name in list(_files(folder)):
        path = folder / name
        is_own = source is not None and (source / name).is_symlink()
        if path.is_symlink() and not is_own and not Path(os.path.realpath(path)).is_relative_to(root):
            path.unlink()
