"""The sandbox of processes: limits, and where the kernel has Landlock and seccomp, closed files, network and signals.

With both, the command reads programs and its input files, writes its folders, connects by TCP only to the gateway's
port (on any host), opens no other sockets, and signals no process outside. A command of root runs as nobody, or as
root without capabilities. `open_here` returns what the system cannot restrict.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import filecmp
import functools
import json
import logging
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from ...errors import UserError
from ...processes import FAMILY_VARIABLE, end_family, new_family
from .programs import landlock, seccomp
from .sandbox import HISTORY, Confined, Ended, HarnessError, SandboxLimits, copy_task
from .tasks import VerifierTable

# The supervisor is a small process that runs one command.
#
# It outlives this process for a moment, to kill the processes of the command. It notices the end of this process by the
# end of its standard input and by its parent's id.


PROGRAMS: Final = Path(__file__).parent / "programs"
_BOOTSTRAP: Final = (
    f"import sys; sys.path.insert(0, {str(PROGRAMS.parent)!r}); from programs.supervisor import main; main()"
)
_END_SECONDS: Final = 15.0
_LIMITS: Final = {
    "seconds": "sandbox_seconds",
    "cpu_seconds": "sandbox_cpu_seconds",
    "memory": "sandbox_memory_mib",
    "processes": "sandbox_processes",
    "disk": "sandbox_disk_mib",
    "file": "sandbox_file_mib",
}
_SIGXCPU, _SIGXFSZ = -24, -25


async def run_supervised(
    words: Sequence[str],
    env: Mapping[str, str],
    limits: SandboxLimits,
    *,
    folders: Sequence[Path],
    cwd: Path,
    bounded: Sequence[str] = (),
    files: Mapping[str, Any] | None = None,
    after: Sequence[str] = (),
) -> Ended:
    """Run a command; when this returns or raises, all of its processes have ended.

    Args:
        folders: folders whose size counts as the command's disk.
        bounded: limits to apply besides time, output and disk.
        files: Landlock rules; None restricts neither files nor network.
        after: command to run after the end, in any case.

    Raises:
        HarnessError: it could not be started or ended.
        UserError: the system is not Linux or macOS.
    """
    if os.name != "posix":
        raise UserError("commands as agents need Linux or macOS", setting="agent_command")
    mark = new_family()
    wanted = {"seconds", "output", "disk", *bounded}
    values = asdict(limits)
    task = {
        "argv": list(words),
        "cwd": str(cwd),
        "env": {**env, FAMILY_VARIABLE: mark},
        "limits": {name: value for name, value in values.items() if name in wanted},
        "rlimits": {name: value for name, value in values.items() if name in bounded},
        "files": files,
        "folders": [str(folder) for folder in folders],
        "after": list(after),
        "parent": os.getpid(),
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-c", _BOOTSTRAP),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
        env={"PATH": os.defpath},
        limit=max(1 << 20, 16 * limits.output),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    report = b""
    try:
        with contextlib.suppress(OSError):  # it has died: there will be no report
            process.stdin.write(json.dumps(task).encode() + b"\n")
            await process.stdin.drain()
        report = await process.stdout.readline()
    finally:
        process.stdin.close()
        if not report.endswith(b"\n"):
            await asyncio.shield(_end_all(process, mark))
    await process.wait()
    return _read(report, words[0])


async def _end_all(process: asyncio.subprocess.Process, mark: str) -> None:
    """Wait for the supervisor to end the command, then end all processes with the mark."""
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(process.wait(), _END_SECONDS)
    await asyncio.to_thread(end_family, process.pid, mark, grace=0.0)
    await process.wait()


def _read(report: bytes, program: str) -> Ended:
    if not report.endswith(b"\n"):
        raise HarnessError(f"{program}: its supervisor was killed; so were all processes with its mark")
    result = json.loads(report)
    if "error" in result:
        raise HarnessError(f"the command cannot be run: {result['error']}")
    if result["alive"]:
        raise HarnessError(f"{program}: a process of it cannot be killed")
    status = result["status"]
    limit = result["ended_by"] or {_SIGXCPU: "cpu_seconds", _SIGXFSZ: "file"}.get(status)
    return Ended(
        None if limit is not None else status,
        None if limit is None else _LIMITS[limit],
        result["stdout"],
        result["stderr"],
        result["seconds"],
        result["cpu_seconds"],
        result["memory"],
        result["left_behind"],
    )


def new_name() -> str:
    """Return a name for a container or a Job."""
    return f"mini-agentic-rl-{secrets.token_hex(6)}"


logger = logging.getLogger(__name__)


BOUNDED: Final = ("cpu_seconds", "memory", "processes", "file")
_DEVICES: Final = (
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
)
_SEEN: Final = ("/dev", "/proc", "/sys")


class ProcessSandbox:
    """Runs commands as processes of this computer, restricted by Landlock and seccomp."""

    def __init__(self, network: str) -> None:
        """`network` is `closed` or `open`."""
        self._network = network

    async def run(self, confined: Confined) -> Ended:
        _warn_once(self._network)
        return await run_supervised(
            confined.words,
            confined.env,
            confined.limits,
            folders=[confined.workspace, *confined.writable],
            cwd=confined.workspace,
            bounded=BOUNDED,
            files=self._files(confined),
        )

    def base_url(self, url: str) -> str:
        return url

    def _files(self, confined: Confined) -> dict[str, Any]:
        ports = None if self._network == "open" else [] if confined.gateway is None else [confined.gateway[1]]
        return {
            "readable": [*confined.readable.paths, *map(str, confined.given), *_SEEN],
            "listable": list(confined.readable.listed),
            "writable": [*map(str, (confined.workspace, *confined.writable)), *_DEVICES],
            "ports": ports,
        }


def open_here(network: str = "closed") -> list[str]:
    """Return the restrictions that this computer's kernel cannot enforce."""
    version, has_filter = landlock.version(), seccomp.is_known()
    missing = [] if version else ["files"]
    if network == "closed":
        missing += [] if version >= landlock.NETWORK_VERSION else ["TCP"]
        missing += [] if has_filter else ["other sockets"]
    missing += [] if version >= landlock.SCOPE_VERSION else ["signals to your processes"]
    return missing if has_filter else [*missing, "memory that no process shows"]


@functools.cache
def _warn_once(network: str) -> None:
    if left := open_here(network):
        logger.warning(
            "on this system the sandbox `process` leaves open: %s; `sandbox=bubblewrap` closes files, network and "
            "processes",
            ", ".join(left),
        )


# Tests run in a new copy of the task's files, over which the agent's results are copied.
#
# Visible tests, and files that steer a test runner from outside of the tests, are always those of the task. If the task
# declares `results`, only these files are taken from the agent.


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
    *("**/jest.config.*", "**/vitest.config.*", "**/.mocharc.*", "**/.npmrc"),
)
"""Files that could make tests pass without a solution: a new one counts as tampering, too."""


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
    tampered = []
    for name in sorted(changed, key=lambda name: (os.path.lexists(workspace / name), name)):  # removed files first
        in_task = source is not None and os.path.lexists(source / name)
        is_steering = _matches(name, (*STEERING, *verifier.protected)) and name not in verifier.results
        if is_steering or _matches(name, TESTS):
            if in_task or is_steering:
                tampered.append(name)
        elif not verifier.results or _matches(name, verifier.results):
            _take(name, workspace, folder)
    _remove_links_out(folder, source)
    return sorted(tampered)


def added_modules(folder: Path, source: Path | None, changed: Sequence[str]) -> list[str]:
    """Return the Python modules in the test folder that the agent added, without their suffixes."""
    modules = set()
    for name in changed:
        parts = name.rstrip("/").split("/")
        for depth in range(1, len(parts) + 1):
            place = "/".join(parts[:depth])
            if (source is None or not os.path.lexists(source / place)) and os.path.lexists(folder / place):
                modules.add("/".join((*parts[: depth - 1], parts[depth - 1].partition(".")[0])))
                if parts[depth - 1].startswith("__init__."):
                    modules.add("/".join(parts[: depth - 1]))
    return sorted(modules - {""})


def _matches(name: str, patterns: Sequence[str]) -> bool:
    """Return True if a pattern matches; a leading `**/` matches any folders, or none."""
    return any(
        fnmatchcase(name, pattern) or (pattern.startswith("**/") and fnmatchcase(name, pattern[3:]))
        for pattern in patterns
    )


def _files(folder: Path) -> Iterator[str]:
    """Yield the relative names of files, links and empty folders, without following links."""
    for place, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        folders[:] = [name for name in folders if name not in links and name not in (*HISTORY, "__pycache__")]
        for name in (*names, *links):
            yield os.path.relpath(os.path.join(place, name), folder).replace(os.sep, "/")
        if not (folders or names or links) and Path(place) != folder:
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


def _remove_links_out(folder: Path, source: Path | None) -> None:
    """Remove links out of a folder that the task does not have: tests could read secrets through them."""
    root = Path(os.path.realpath(folder))
    for name in list(_files(folder)):
        path = folder / name
        in_task = source is not None and (source / name).is_symlink()
        if path.is_symlink() and not in_task and not Path(os.path.realpath(path)).is_relative_to(root):
            path.unlink()
