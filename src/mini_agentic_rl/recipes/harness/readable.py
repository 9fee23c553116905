"""The files of this computer that a confined command may read: programs and what they need, and nothing of the user's.

Programs are those of the system, of this Python, of the command, and the executable files in the folders on the PATH.
Beside a folder of programs only libraries are shown: `~/.local` and `~/.cargo` hold credentials as well. What is
hidden, as the data file, the folder with the tasks and the run folder, stays so wherever it lies.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/gnu")
_PROGRAMS: Final = ("bin", ".bin", "sbin", "shims")
_LIBRARIES: Final = (
    *("bin", "lib", "lib64", "libexec", "include", "ssl", "pyvenv.cfg"),
    *("shims", "plugins", "versions", "version", "installs"),
)
"""Parts of an installation: of a Python and a Node, and of the managers of versions."""
_OF_RUN: Final = frozenset({"rollouts.db", "metrics.jsonl"})
"""Files of which a run folder has one."""
_FIRST_LINE: Final = 512
_SCRIPTS: Final = 4


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
        words: commands; the first word of each is a program, and others may name files.
        more: what else may be read.
        hidden: what may not, though a folder that may holds it.
    """
    kept_out = [path.resolve() for path in hidden]
    wanted: list[Path] = [Path(path) for path in SYSTEM]
    for prefix in (sys.prefix, sys.base_prefix):
        wanted += _parts(Path(prefix))
    wanted += _programs_on_path(tuple(os.get_exec_path()))
    for command in words:
        found = shutil.which(command[0])
        wanted += [] if found is None else _of_program(Path(found).absolute())
        wanted += [Path(word) for word in command[1:] if os.path.isabs(word) and os.path.isfile(word)]
    paths: list[str] = []
    listed: list[str] = []
    for path in [*dict.fromkeys(wanted), *more]:
        _open(path.absolute(), kept_out, paths, listed)
    shown = set(paths)
    return Readable(
        [path for path in dict.fromkeys(paths) if shown.isdisjoint(map(str, Path(path).parents))],
        list(dict.fromkeys(listed)),
    )


def run_folders_in(folders: Iterable[Path]) -> list[Path]:
    """Return the folders of runs that lie in these; their rollouts hold answers."""
    return [Path(place) for folder in folders for place, _, names in os.walk(folder) if not _OF_RUN.isdisjoint(names)]


@functools.cache
def _programs_on_path(folders: Sequence[str]) -> list[Path]:
    """Return what belongs to the executable files in the folders on the PATH; those of the system are shown anyway."""
    found: list[Path] = []
    for folder in map(Path, folders):
        if folder.is_dir() and not any(folder.is_relative_to(one) for one in SYSTEM):
            for program in sorted(folder.absolute().iterdir()):
                if program.is_file() and os.access(program, os.X_OK):
                    found += _of_program(program)
    return list(dict.fromkeys(found))


def _of_program(program: Path, scripts: int = _SCRIPTS) -> Iterator[Path]:
    """Yield a program, what its link leads to, the libraries of both, and the interpreter of a script, which may be a
    script itself so many times."""
    for place in dict.fromkeys((program, program.resolve())):
        yield place
        if place.parent.name in _PROGRAMS:
            yield from _parts(place.parent.parent)
        yield from [folder for folder in place.parents if folder.name == "node_modules"][-1:]
        try:
            with open(place, "rb") as file:
                first = file.readline(_FIRST_LINE)
        except OSError:  # it may be executed, and not be read
            continue
        interpreter = first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []
        if scripts and interpreter and os.path.isfile(interpreter[0]):
            yield from _of_program(Path(interpreter[0]), scripts - 1)


def _parts(prefix: Path) -> list[Path]:
    """Return the parts of an installation, never those of a home."""
    private = (Path.home(), *map(Path, ("/", "/tmp", "/var/tmp", "/home", "/root", "/Users")))
    if prefix in private or prefix.resolve() in private:
        return []
    return [prefix / name for name in _LIBRARIES]


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
