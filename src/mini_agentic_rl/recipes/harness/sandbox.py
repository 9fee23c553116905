"""Sandboxes: the interface, limits, readable files, scratch folders, and the socket to the gateway.

A `Sandbox` runs one `Confined` command to its end and returns an `Ended`. `process` and `bubblewrap` are local; they
and the client of `docker` run under a supervisor process (`run_supervised`), which bounds output, time and disk, and
kills leftover processes. `kubernetes` uses `kubectl`.
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
from urllib.parse import urlsplit

from ...config import MIB, HarnessSettings

# Readable files: a confined command may read programs and their libraries, but none of the user's files.
#
# Programs are those of the system, of this Python, of the command, and the executables on the PATH. Of the folder above
# a `bin` only libraries are readable, because `~/.local` and `~/.cargo` contain credentials. Hidden paths (the data
# file, the folder of tasks, the run folder) are never readable.


SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/gnu")
_PROGRAMS: Final = ("bin", ".bin", "sbin", "shims")
_LIBRARIES: Final = (
    *("bin", "lib", "lib64", "libexec", "include", "ssl", "pyvenv.cfg"),
    *("shims", "plugins", "versions", "version", "installs"),
)
"""Parts of an installation of Python, Node or a version manager."""
_RUN_FILES: Final = frozenset({"rollouts.db", "metrics.jsonl"})
"""Files of a run folder."""
_FIRST_LINE: Final = 512
_SCRIPTS: Final = 4
"""Nested script interpreters that are followed."""


@dataclass(frozen=True)
class Readable:
    """Paths that a command may read."""

    paths: Sequence[str]
    """Files, and folders with their content."""
    listed: Sequence[str]
    """Folders that may only be listed, because they contain hidden paths."""


def readable_paths(words: Iterable[Sequence[str]], more: Iterable[Path], hidden: Iterable[Path]) -> Readable:
    """Return the paths that commands may read.

    Args:
        words: commands; the first word of each is a program, and others may name files.
        more: further readable paths.
        hidden: paths that may not be read, even within a readable folder.
    """
    hidden_paths = [path.resolve() for path in hidden]
    wanted: list[Path] = [Path(path) for path in SYSTEM]
    for prefix in (sys.prefix, sys.base_prefix):
        wanted += _parts(Path(prefix))
    wanted += _programs_on_path(tuple(os.get_exec_path()))
    for command in words:
        program = shutil.which(command[0])
        wanted += [] if program is None else _of_program(Path(program).absolute())
        wanted += [Path(word) for word in command[1:] if os.path.isabs(word) and os.path.isfile(word)]
    paths: list[str] = []
    listed: list[str] = []
    for path in [*dict.fromkeys(wanted), *more]:
        _collect(path.absolute(), hidden_paths, paths, listed)
    shown = set(paths)
    return Readable(
        [path for path in dict.fromkeys(paths) if shown.isdisjoint(map(str, Path(path).parents))],
        list(dict.fromkeys(listed)),
    )


def run_folders_in(folders: Iterable[Path]) -> list[Path]:
    """Return the run folders within these folders; their rollouts contain answers."""
    return [
        Path(place) for folder in folders for place, _, names in os.walk(folder) if not _RUN_FILES.isdisjoint(names)
    ]


@functools.cache
def _programs_on_path(folders: Sequence[str]) -> list[Path]:
    """Return the paths of the programs in the folders on the PATH, without those of `SYSTEM`."""
    paths: list[Path] = []
    for folder in map(Path, folders):
        if folder.is_dir() and not any(folder.is_relative_to(place) for place in SYSTEM):
            for program in sorted(folder.absolute().iterdir()):
                if program.is_file() and os.access(program, os.X_OK):
                    paths += _of_program(program)
    return list(dict.fromkeys(paths))


def _of_program(program: Path, scripts: int = _SCRIPTS) -> Iterator[Path]:
    """Yield a program, the target of its link, the libraries of both, and the interpreter of a script. An interpreter
    may be a script itself, up to `scripts` times."""
    for place in dict.fromkeys((program, program.resolve())):
        yield place
        if place.parent.name in _PROGRAMS:
            yield from _parts(place.parent.parent)
        yield from [folder for folder in place.parents if folder.name == "node_modules"][-1:]
        try:
            with open(place, "rb") as file:
                first = file.readline(_FIRST_LINE)
        except OSError:  # executable but not readable
            continue
        interpreter = first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []
        if scripts and interpreter and os.path.isfile(interpreter[0]):
            yield from _of_program(Path(interpreter[0]), scripts - 1)


def _parts(prefix: Path) -> list[Path]:
    """Return the parts of an installation; none of a home or temporary folder."""
    private = (Path.home(), *map(Path, ("/", "/tmp", "/var/tmp", "/home", "/root", "/Users")))
    if prefix in private or prefix.resolve() in private:
        return []
    return [prefix / name for name in _LIBRARIES]


def _collect(path: Path, hidden: Sequence[Path], paths: list[str], listed: list[str]) -> None:
    """Add a path to `paths`; of a folder that contains hidden paths, add the other children."""
    resolved = path.resolve()
    if not path.exists() or any(resolved.is_relative_to(path) for path in hidden):
        return
    if not any(path.is_relative_to(resolved) for path in hidden):
        paths.append(str(path))
        return
    listed.append(str(path))
    for child in sorted(path.iterdir()):
        if not child.is_symlink():
            _collect(child, hidden, paths, listed)


_SIGNALLED: Final = 128


class HarnessError(RuntimeError):
    """A command could not be run, reached a limit, was killed, or never called the model. Fails one rollout."""


@dataclass(frozen=True)
class SandboxLimits:
    """Limits of one command with all of its processes."""

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
    """Bytes of each output stream that are kept."""

    @classmethod
    def of(cls, settings: HarnessSettings, seconds: float) -> SandboxLimits:
        """Return the limits of the settings, with `seconds` as the time limit."""
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
    """A command and the files that it may use."""

    words: Sequence[str]
    env: Mapping[str, str]
    workspace: Path
    """Writable working directory."""
    writable: Sequence[Path]
    """Other writable folders."""
    given: Sequence[Path]
    """Readable files and folders of the rollout."""
    readable: Readable
    """Readable programs and files of this computer, for local sandboxes."""
    limits: SandboxLimits
    gateway: tuple[str, int] | None
    """Host and port of the gateway; None for a command that calls no model."""
    image: str = ""
    """Container image."""


@dataclass(frozen=True)
class Ended:
    """The result of a command."""

    exit_code: int | None
    """Exit code, or minus the number of the signal that killed it; None if a limit was reached."""
    limit: str | None = None
    """Setting of the limit that was reached."""
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory: int = 0
    """Peak memory of all its processes, in bytes; 0 if unknown."""
    left_behind: int = 0
    """Processes that were still running when the command had ended, and were killed."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Facts about the sandbox, stored with the rollout."""

    def describe(self) -> str:
        """Return the end in words."""
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
        """Run a command to its end; none of its processes is running when this returns or raises.

        Raises:
            HarnessError: it could not be started or ended.
        """
        ...

    def base_url(self, url: str) -> str:
        """Return the address inside the sandbox of a gateway that is at `url` for this process.

        Raises:
            HarnessError: the command cannot reach it.
        """
        ...


def new_name() -> str:
    """Return a name for a container or a Job."""
    return f"mini-agentic-rl-{secrets.token_hex(6)}"


def exit_code_of(status: int | None) -> int | None:
    """Return the exit code of a program run by another, which reports a signal as 128 plus its number."""
    return _SIGNALLED - status if status is not None and _SIGNALLED < status <= _SIGNALLED + 64 else status


# The scratch folder of one rollout:
#
# workspace/   working directory: the task's files without version control history
# home/ tmp/   HOME and TMPDIR
# task.json    the task without hidden fields


HISTORY: Final = (".git", ".hg", ".svn", ".jj", ".bzr")
"""Folders of version control, which may contain the solution."""

_FOLDER: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)


class Scratch:
    """A scratch folder and its parts."""

    def __init__(self, parent: Path | None, name: str) -> None:
        """Create the folder; in `parent`, it is kept. `name` is part of its name."""
        self._kept = parent is not None
        self._beside: list[Path] = []
        if parent is not None:
            parent.mkdir(parents=True, exist_ok=True)
        # resolved, because a sandbox compares real paths
        self.root = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent)).resolve()
        self.workspace = self.root / "workspace"
        self.home = self.root / "home"
        self.temporary = self.root / "tmp"
        self.task_file = self.root / "task.json"
        for folder in (self.workspace, self.home, self.temporary):
            folder.mkdir()

    def fill(self, source: Path | None, task: Mapping[str, Any]) -> None:
        """Copy the task's files and write the task.

        Raises:
            HarnessError: the files cannot be read.
        """
        copy_task(source, self.workspace)
        write_task(self.task_file, task)

    def beside(self, name: str) -> Path:
        """Return a new empty folder beside this one, which the agent could not write to."""
        folder = Path(tempfile.mkdtemp(prefix=f"{self.root.name}-{name}-", dir=self.root.parent)).resolve()
        self._beside.append(folder)
        return folder

    def remove(self) -> None:
        """Remove the folder and those beside it, unless they are kept."""
        for folder in () if self._kept else (self.root, *self._beside):
            remove_tree(folder)


def copy_task(source: Path | None, folder: Path) -> None:
    """Copy the files of a task, if it has any, into a folder, without version control history.

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
    """Remove a folder of any depth: nested folders are first moved to its top.

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
    os.chmod(name, stat.S_IRWXU, dir_fd=top)  # it may have no permissions
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


# The gateway behind a Unix socket, the only connection out of a sandbox with a closed network.


PROGRAMS: Final = Path(__file__).parent / "programs"
_CHUNK: Final = 1 << 16
_UNPRIVILEGED: Final = 1024


def inner_port(port: int) -> int:
    """Return the port of a gateway on the loopback of a sandbox; a privileged port is moved up by 1024."""
    return port if port >= _UNPRIVILEGED else _UNPRIVILEGED + port


def loopback_url(url: str) -> str:
    """Return the URL of a gateway on the loopback of a sandbox.

    Raises:
        HarnessError: it is served over TLS; the certificate is for another host name.
    """
    parts = urlsplit(url)
    if parts.scheme != "http":
        raise HarnessError(f"{url}: a sandbox with a closed network reaches a gateway over plain HTTP alone")
    return parts._replace(netloc=f"127.0.0.1:{inner_port(parts.port or 80)}").geturl()


@asynccontextmanager
async def relayed(network: str, gateway: tuple[str, int] | None) -> AsyncIterator[Path | None]:
    """Yield a Unix socket whose connections are forwarded to the gateway within the block; None without a gateway or
    with an open network."""
    if network == "open" or gateway is None:
        yield None
        return
    running: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):  # the gateway has gone, or the block has ended
                outward, inward = await asyncio.open_connection(*gateway)
                try:
                    await asyncio.gather(_copy(reader, inward), _copy(outward, writer))
                finally:
                    inward.close()
        finally:
            writer.close()
            running.discard(task)

    with tempfile.TemporaryDirectory(prefix="marl-") as folder:  # the path of a socket has to be short
        path = await asyncio.to_thread(lambda: Path(folder).resolve() / "gateway")
        server = await asyncio.start_unix_server(carry, str(path))
        # A container may run its command as another user. Only this user can enter the folder of the socket.
        await asyncio.to_thread(path.chmod, 0o666)
        try:
            yield path
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
    except OSError:  # one side has gone: close the other
        writer.close()
