"""The files of this computer that a confined command may read: programs and what they need, and nothing of the user's.

Programs are those of the system, of the folders on the PATH, of this Python, and of the command's own words. What is
hidden, as the folder with the tasks and their tests, stays so wherever it lies.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/gnu")
_FIRST_LINE: Final = 512


@dataclass(frozen=True)
class Readable:
    """Paths that a command may read."""

    paths: Sequence[str]
    """Files, and folders with all that is in them."""
    listed: Sequence[str]
    """Folders of which only the names within may be known, since something hidden lies in them."""


def readable_paths(words: Iterable[Sequence[str]], more: Iterable[Path], hidden: Iterable[Path]) -> Readable:
    """Return the paths for commands, each the words of one.

    Args:
        words: commands; the first word of each is a program.
        more: what else may be read.
        hidden: what may not, though a folder that may holds it.
    """
    kept_out = [path.resolve() for path in hidden]
    wanted: list[Path] = [Path(path) for path in SYSTEM]
    wanted += [Path(folder) for folder in (sys.prefix, sys.base_prefix)]
    for folder in os.get_exec_path():
        wanted += _installation(Path(folder), kept_out)
    for command in words:
        wanted += _of_program(command[0], kept_out)
        for word in command[1:]:
            if os.path.isabs(word) and os.path.isfile(word):
                file = Path(word)
                wanted.append(file if file.parent.resolve() in _private() else file.parent)
    paths: list[str] = []
    listed: list[str] = []
    for path in [*wanted, *more]:
        _open(path.absolute(), kept_out, paths, listed)
    return Readable(list(dict.fromkeys(paths)), list(dict.fromkeys(listed)))


def _of_program(name: str, hidden: Sequence[Path]) -> list[Path]:
    """Return the installation of a program, of what its link leads to, and of the interpreter of a script."""
    found = shutil.which(name)
    if found is None:
        return []
    paths: list[Path] = []
    for program in (Path(found).absolute(), Path(found).resolve()):
        paths += _installation(program.parent, hidden)
        try:
            with open(program, "rb") as file:
                first = file.readline(_FIRST_LINE)
        except OSError:  # it may be executed, and not be read
            continue
        if first.startswith(b"#!"):
            interpreter = first[2:].decode(errors="replace").split()
            for word in interpreter[:1]:
                if os.path.isabs(word) and Path(word) not in (Path(found), program) and os.path.exists(word):
                    for place in (Path(word), Path(word).resolve()):
                        paths += _installation(place.parent, hidden)
    return paths


def _private() -> tuple[Path, ...]:
    """Return folders that are not opened for the sake of one file in them."""
    return (Path.home().resolve(), *map(Path, ("/", "/tmp", "/var/tmp", "/home", "/root", "/Users")))


def _installation(folder: Path, hidden: Sequence[Path]) -> list[Path]:
    """Return the folder of a program, or where that is a `bin` the one above it, with libraries and all; never a home,
    nor a folder with something hidden in it."""
    found = [folder]
    above = folder.parent
    is_open = above.resolve() not in _private() and not any(one.is_relative_to(above.resolve()) for one in hidden)
    if folder.name in ("bin", ".bin", "sbin", "shims", "Scripts") and is_open:
        found.append(above)
    resolved = folder.resolve()
    if resolved != folder:
        found.append(resolved)
    return found


def _open(path: Path, hidden: Sequence[Path], paths: list[str], listed: list[str]) -> None:
    """Add a path, or of a folder with something hidden below it what else is there."""
    resolved = path.resolve()
    if not path.exists() or any(resolved.is_relative_to(one) for one in hidden):
        return
    if not any(one.is_relative_to(resolved) for one in hidden):
        paths.append(str(path))
        return
    listed.append(str(path))
    for child in sorted(path.iterdir()):
        if not child.is_symlink():
            _open(child, hidden, paths, listed)
