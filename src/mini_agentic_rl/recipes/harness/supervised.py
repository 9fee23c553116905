"""One command under the supervisor, a small process of its own that outlives neither its command nor its asker.

The supervisor is no child that dies with this process: it has to live a moment longer, to kill what the command has
started. It sees the end of this process by the end of its standard input, and in the number of its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from ...errors import UserError
from ...runner import FAMILY_VARIABLE, end_family, new_family
from .sandbox import Ended, HarnessError, SandboxLimits

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
        folders: their size counts as the command's disk.
        bounded: limits, besides time, output and disk, that are those of these processes.
        files: what Landlock allows; None leaves files and network as they are.
        after: command to run when it has ended, however that came.

    Raises:
        HarnessError: it could not be started, or not be ended.
        UserError: the system has no such processes.
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
        with contextlib.suppress(OSError):  # it has died, which its missing report says
            process.stdin.write(json.dumps(task).encode() + b"\n")
            await process.stdin.drain()
        report = await process.stdout.readline()
    finally:
        process.stdin.close()
        if not report.endswith(b"\n"):
            await asyncio.shield(_make_sure(process, mark))
    await process.wait()
    return _read(report, words[0])


async def _make_sure(process: asyncio.subprocess.Process, mark: str) -> None:
    """Wait for the supervisor to end the command; where it has died itself, end what bears the mark."""
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(process.wait(), _END_SECONDS)
    await asyncio.to_thread(end_family, process.pid, mark, grace=0.0)
    await process.wait()


def _read(report: bytes, program: str) -> Ended:
    if not report.endswith(b"\n"):
        raise HarnessError(f"{program}: its supervisor was killed; so was all that bore its mark")
    found = json.loads(report)
    if "error" in found:
        raise HarnessError(f"the command cannot be run: {found['error']}")
    if found["alive"]:
        raise HarnessError(f"{program}: a process of it cannot be killed")
    status = found["status"]
    limit = found["ended_by"] or {_SIGXCPU: "cpu_seconds", _SIGXFSZ: "file"}.get(status)
    return Ended(
        None if limit is not None else status,
        None if limit is None else _LIMITS[limit],
        found["stdout"],
        found["stderr"],
        found["seconds"],
        found["cpu_seconds"],
        found["memory"],
        found["left_behind"],
    )


def new_name() -> str:
    """Return a name for a container or a Job."""
    return f"mini-agentic-rl-{secrets.token_hex(6)}"
