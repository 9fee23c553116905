"""Sandboxes: where a command runs, what it may take, and what came of it.

A `Sandbox` runs one `Confined` command to its end and returns the `Ended`. `process` and `bubblewrap` are local; these
and the client of `docker` run under one supervisor (`supervised`), which bounds output, time and the scratch folder,
and kills what is left. `kubernetes` goes by `kubectl`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import secrets
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from ...config import MIB, HarnessSettings

# The files of this computer that a confined command may read: programs and what they need, and nothing of the user's.
#
# Programs are those of the system, of this Python, of the command, and the executable files in the folders on the PATH.
# Beside a folder of programs only libraries are shown: `~/.local` and `~/.cargo` hold credentials as well. What is
# hidden, as the data file, the folder with the tasks and the run folder, stays so wherever it lies.


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


_SIGNALLED: Final = 128


class HarnessError(RuntimeError):
    """Report that a command could not be run, reached a limit, was killed, or never called the model: the error of one
    rollout, which touches no other."""


@dataclass(frozen=True)
class SandboxLimits:
    """Bounds of one command with all of its processes."""

    seconds: float
    cpu_seconds: float
    memory: int
    """Bytes."""
    processes: int
    """Processes and threads."""
    file: int
    """Bytes of one file."""
    disk: int
    """Bytes of its folders."""
    output: int
    """Bytes that are kept of each output."""

    @classmethod
    def of(cls, settings: HarnessSettings, seconds: float) -> SandboxLimits:
        """Return the limits that the settings give to a command that may take so many seconds."""
        return cls(
            seconds=seconds,
            cpu_seconds=settings.sandbox_cpu_seconds,
            memory=settings.sandbox_memory_mib * MIB,
            processes=settings.sandbox_processes,
            file=settings.sandbox_file_mib * MIB,
            disk=settings.sandbox_disk_mib * MIB,
            output=settings.sandbox_output_kib << 10,
        )


@dataclass(frozen=True)
class Confined:
    """A command, and the folders that it sees."""

    words: Sequence[str]
    env: Mapping[str, str]
    workspace: Path
    """Folder where it runs, which it may write to."""
    writable: Sequence[Path]
    """Other folders that it may write to."""
    given: Sequence[Path]
    """Files and folders of the rollout that it may read."""
    readable: Readable
    """Programs and files of this computer that it may read, where it runs on it."""
    limits: SandboxLimits
    gateway: tuple[str, int] | None
    """Host and port of the gateway; None for a command that asks no model."""
    image: str = ""
    """Image of a container."""


@dataclass(frozen=True)
class Ended:
    """The end of a command."""

    exit_code: int | None
    """Exit code; minus the number of the signal that killed it; None where a limit was reached."""
    limit: str | None = None
    """Name of the setting of the limit that was reached."""
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory: int = 0
    """Most bytes at once of all its processes; 0 where nobody could measure it."""
    left_behind: int = 0
    """Processes that ran on when the command had ended, and were killed."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Facts about the sandbox, for the record."""

    def describe(self) -> str:
        """Return in words how it ended."""
        if self.limit is not None:
            return f"reached the limit `{self.limit}`"
        code = self.exit_code or 0
        if code >= 0:
            return f"ended with exit code {code}"
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"


class Sandbox(Protocol):
    """A place where commands run."""

    async def run(self, confined: Confined) -> Ended:
        """Run a command to its end; none of its processes is left when this returns, or raises.

        Raises:
            HarnessError: it could not be started, or not be ended.
        """
        ...

    def base_url(self, url: str) -> str:
        """Return the address under which the command reaches a gateway that is at `url` for this process.

        Raises:
            HarnessError: it cannot reach it.
        """
        ...


def exit_code_of(status: int) -> int:
    """Return the exit code of a program that ran within another, which tells a signal as 128 and its number."""
    return _SIGNALLED - status if _SIGNALLED < status <= _SIGNALLED + 64 else status


# The folder of one rollout: a copy of the task's files, a home and a place for temporary files.
#
# workspace/   where the command runs: the task's files, without the history of any version control
# home/ tmp/   its HOME and TMPDIR
# task.json    the task, as far as the agent may know it


HISTORY: Final = (".git", ".hg", ".svn", ".jj", ".bzr")
"""Folders of version control: an agent could read from them how the task was solved."""

_FOLDER: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)


class Scratch:
    """A scratch folder, and its parts."""

    def __init__(self, parent: Path | None, name: str) -> None:
        """Make the folder, in `parent` where it is to stay; `name` is part of its name."""
        self._kept = parent is not None
        self._beside: list[Path] = []
        if parent is not None:
            parent.mkdir(parents=True, exist_ok=True)
        # /tmp/x may be a link, and a sandbox compares real paths
        self.root = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent)).resolve()
        self.workspace = self.root / "workspace"
        self.home = self.root / "home"
        self.temporary = self.root / "tmp"
        self.task_file = self.root / "task.json"
        for folder in (self.workspace, self.home, self.temporary):
            folder.mkdir()

    def fill(self, source: Path | None, task: Mapping[str, Any]) -> None:
        """Copy the task's files in, and write the task.

        Raises:
            HarnessError: the files cannot be read.
        """
        copy_task(source, self.workspace)
        write_task(self.task_file, task)

    def beside(self, name: str) -> Path:
        """Return a new empty folder that lies beside this one, where the agent could not prepare anything."""
        folder = Path(tempfile.mkdtemp(prefix=f"{self.root.name}-{name}-", dir=self.root.parent)).resolve()
        self._beside.append(folder)
        return folder

    def remove(self) -> None:
        """Remove the folder, and those beside it, unless they are to stay."""
        for folder in () if self._kept else (self.root, *self._beside):
            remove_tree(folder)


def copy_task(source: Path | None, folder: Path) -> None:
    """Copy the files of a task into a folder, without their history; of a task without files nothing.

    Raises:
        HarnessError: the files cannot be read.
    """
    if source is None:
        return
    try:
        shutil.copytree(source, folder, symlinks=True, ignore=shutil.ignore_patterns(*HISTORY), dirs_exist_ok=True)
    except (OSError, shutil.Error) as error:
        raise HarnessError(f"{source} cannot be copied: {error}") from error


def write_task(path: Path, task: Mapping[str, Any]) -> None:
    """Write a task as JSON."""
    path.write_text(json.dumps(task, ensure_ascii=False, indent=1, default=str) + "\n", encoding="utf-8")


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it, however deep: each folder within is first moved to its top.

    Raises:
        OSError: something cannot be removed.
    """
    if os.name != "posix":
        shutil.rmtree(folder)
        return
    top = os.open(folder, _FOLDER)
    try:
        while names := os.listdir(top):
            for name in names:
                _empty(name, top)
    finally:
        os.close(top)
    folder.rmdir()


def _empty(name: str, top: int) -> None:
    """Remove a file, or a folder whose own folders are moved to `top` under new names."""
    if not stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=top)
        return
    os.chmod(name, stat.S_IRWXU, dir_fd=top)  # its owner may have closed it
    folder = os.open(name, _FOLDER, dir_fd=top)
    try:
        for inner in os.listdir(folder):
            if stat.S_ISDIR(os.stat(inner, dir_fd=folder, follow_symlinks=False).st_mode):
                os.chmod(inner, stat.S_IRWXU, dir_fd=folder)
                os.rename(inner, secrets.token_hex(16), src_dir_fd=folder, dst_dir_fd=top)
            else:
                os.unlink(inner, dir_fd=folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=top)


# A socket in the file system behind which the gateway is: the only way out of a sandbox without a network.


_CHUNK: Final = 1 << 16


@asynccontextmanager
async def relay(path: Path, gateway: tuple[str, int]) -> AsyncIterator[None]:
    """Carry connections to the socket `path` to the gateway, as long as the block lasts."""
    running: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            with contextlib.suppress(OSError):  # the gateway has gone, which the command sees by its connection
                outward, inward = await asyncio.open_connection(*gateway)
                try:
                    await asyncio.gather(_copy(reader, inward), _copy(outward, writer))
                finally:
                    inward.close()
        finally:
            writer.close()
            running.discard(task)

    server = await asyncio.start_unix_server(carry, str(path))
    await asyncio.to_thread(
        path.chmod, 0o666
    )  # a container may run its command as somebody else; the folder above is this user's
    try:
        yield
    finally:
        server.close()
        for task in list(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:  # one side has gone: the other is to notice
        writer.close()
