"""The files of the tests: a new copy of the task's files, over which the agent's results are copied.

Visible tests, and files that steer a test runner from outside of the tests, are always those of the task. If the task
declares `results`, only these files are taken from the agent.
"""

from __future__ import annotations

import errno
import filecmp
import functools
import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from fnmatch import translate
from pathlib import Path
from typing import Final

from .sandbox import HISTORY, copy_task
from .tasks import VerifierTable

TESTS: Final = (
    *("tests/**", "test/**", "**/tests/**", "**/test/**", "**/__tests__/**"),
    *("**/test_*.py", "**/*_test.py", "**/*.test.*", "**/*.spec.*", "**/*_test.go"),
    *("**/*.dist-info/**", "**/*.egg-info/**", "**/.pytest_cache/**", "**/node_modules/**"),
)
"""Visible tests and files of tools: changes are reverted, and new files left out."""
STEERING: Final = (
    *("**/conftest.py", "**/sitecustomize.py", "**/usercustomize.py", "**/*.pth", "**/.coveragerc"),
    *("**/pytest.ini", "**/.pytest.ini", "**/pytest.toml", "**/.pytest.toml", "**/tox.ini"),
    *("**/pyproject.toml", "**/setup.cfg", "**/GNUmakefile"),
    *("pytest.py", "pytest/**", "_pytest/**", "unittest.py", "unittest/**", "pluggy/**", "pluggy.py"),
    *("**/jest.config.*", "**/vitest.config.*", "**/babel.config.*", "**/.babelrc*", "**/.mocharc.*", "**/.npmrc"),
    *("**/bunfig.toml", "**/.cargo/**", "**/go.work", "**/.rspec"),
)
"""Files that could make tests pass without a solution: a new one counts as tampering, too."""
_UNSEEN: Final = (*HISTORY, "__pycache__")
"""Names that are neither compared nor copied. Bytecode could replace a protected module, also behind a link."""


def changed_files(workspace: Path, source: Path | None) -> list[str]:
    """Return the sorted relative names of files that were changed, added or removed; empty folders end in a slash."""
    now, before = set(_files(workspace)), set() if source is None else set(_files(source))
    both = {name for name in now & before if source is not None and not _same(source / name, workspace / name)}
    return sorted((now ^ before) | both)


def fill_test_folder(
    folder: Path, workspace: Path, source: Path | None, changed: Sequence[str], verifier: VerifierTable
) -> list[str]:
    """Copy the task's files into an empty folder and the agent's results over them; return the protected files that the
    agent changed.

    A test that the agent added is left out, and is no tampering.

    Args:
        changed: result of `changed_files`.
        verifier: patterns of further protected files, and of results.
    """
    copy_task(source, folder)
    steering = (*STEERING, *verifier.protected)
    modules = set()  # protected ones, and the packages that would run before them
    for name in _files(source) if source is not None else ():
        if name.endswith(".py") and _matches(name, (*steering, *TESTS)):
            modules |= {name[:-3], os.path.join(os.path.dirname(name), "__init__")}
    tampered = []
    for name in sorted(changed, key=lambda name: (os.path.lexists(workspace / name), name)):  # removed files first
        in_task = source is not None and os.path.lexists(source / name)
        is_steering = _matches(name, steering) and name not in verifier.results
        if is_steering or _matches(name, TESTS):
            if in_task or is_steering:
                tampered.append(name)
        elif (
            _matches(name, verifier.results) if verifier.results else modules.isdisjoint(_added(name, source).values())
        ):
            _take(name, workspace, folder)
    remove_links_out(folder, source)
    return sorted(tampered)


def added_modules(folder: Path, source: Path | None, changed: Sequence[str]) -> list[str]:
    """Return the Python modules in the test folder that the agent added, without their suffixes."""
    modules = set()
    for name in changed:
        for place, module in _added(name, source).items():
            if os.path.lexists(folder / place):
                modules |= {module, module.removesuffix("__init__").rstrip("/")}
    return sorted(modules - {""})


def _added(name: str, source: Path | None) -> dict[str, str]:
    """Return the path and the folders above it that the task does not have; each with its name up to the first dot,
    which is that of a module."""
    parts = name.rstrip("/").split("/")
    modules = {}
    for depth in range(1, len(parts) + 1):
        place = "/".join(parts[:depth])
        if source is None or not os.path.lexists(source / place):
            modules[place] = "/".join((*parts[: depth - 1], parts[depth - 1].partition(".")[0]))
    return modules


def _matches(name: str, patterns: Sequence[str]) -> bool:
    """Return True if a pattern matches, in upper or lower case; a link matches like the folder that it may stand for.
    A leading `**/` matches any folders, or none."""
    pattern = _compiled(tuple(patterns))
    return bool(pattern.match(name) or pattern.match(f"{name}/"))


@functools.cache
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    at_the_top = [pattern[3:] for pattern in patterns if pattern.startswith("**/")]
    return re.compile("|".join(map(translate, (*patterns, *at_the_top))) or "(?!)", re.IGNORECASE)


def _files(folder: Path) -> Iterator[str]:
    """Yield the relative names of files, links and empty folders, without following links."""
    for place, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        folders[:] = [name for name in folders if name not in (*links, *_UNSEEN)]
        names = [name for name in (*names, *links) if name not in _UNSEEN]
        for name in names:
            yield os.path.relpath(os.path.join(place, name), folder).replace(os.sep, "/")
        if not (folders or names) and Path(place) != folder:
            yield os.path.relpath(place, folder).replace(os.sep, "/") + "/"


def _same(left: Path, right: Path) -> bool:
    if left.is_symlink() or right.is_symlink():
        return left.is_symlink() and right.is_symlink() and os.readlink(left) == os.readlink(right)
    if left.is_dir() and right.is_dir():
        return True
    try:
        same_content = left.is_file() and right.is_file() and filecmp.cmp(left, right, shallow=False)
        return same_content and not (left.stat().st_mode ^ right.stat().st_mode) & 0o100
    except OSError:  # the agent removed the permission to read it
        return False


def _take(name: str, workspace: Path, folder: Path) -> None:
    """Copy a name from the workspace to `folder`, or remove it there. Only files, folders and links are copied, nothing
    is written through a link, and no protected file is replaced."""
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
            if not source.is_symlink():  # the agent may have removed the permission to read it
                source.chmod(stat.S_IMODE(source.stat().st_mode) | stat.S_IRUSR)
            shutil.copy2(source, target, follow_symlinks=False)
    except (FileExistsError, NotADirectoryError):
        return
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise


def remove_links_out(folder: Path, source: Path | None) -> None:
    """Remove links out of a folder that the task does not have, through which tests and rewards could read secrets; and
    pipes, whose reading never ends."""
    root = Path(os.path.realpath(folder))
    for name in list(_files(folder)):
        path = folder / name
        is_link = path.is_symlink() and not (source is not None and (source / name).is_symlink())
        if path.is_fifo() or (is_link and not Path(os.path.realpath(path)).is_relative_to(root)):
            path.unlink()
