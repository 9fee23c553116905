"""An agent class of agent-lightning 1.0, run as its local controller runs one.

Each rollout is a Python process that makes an instance and calls `run()`. It finds its model in `AGL_OPENAI_BASE_URL`,
the key in `AGL_KEY`, where to leave its reward in `AGL_EVENT_URL`, and its task in variables that `env_map` fills. An
exit code other than 0 is a failed attempt. It and what it has started are killed when its time is over.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import IO, Any, Final
from urllib.parse import urlsplit, urlunsplit

from ...attribution import rollout_environment
from ...errors import UserError
from ...litagent import LitAgent
from ...processes import kill_group, start_child
from ...types import NamedResources, Rollout

_WORKER: Final = """
import asyncio, importlib, inspect, os, sys
sys.path.insert(0, os.getcwd())
module, _, name = sys.argv[1].rpartition(":" if ":" in sys.argv[1] else ".")
made = getattr(importlib.import_module(module), name)()
result = made.run()
if inspect.isawaitable(result):
    async def wait():
        await result
    asyncio.run(wait())
"""
_LOOK_SECONDS: Final = 0.05
_TOLD: Final = 4096
"""Bytes at the end of what a failed process has said that are read."""


class AgentClassProgram(LitAgent[Any]):
    """Runs a class in processes, one for each rollout.

    Args:
        agent_class: `package.module.Class` or `package.module:Class`; the working directory is on the import path.
        env_map: variables by name: `input` is the whole task, `input.a.0` a part of it, anything else a text. A part
            that is no text becomes JSON.

    Raises:
        UserError: `agent_class` is no such name.
    """

    def __init__(self, agent_class: str, env_map: Mapping[str, str] | None = None) -> None:
        super().__init__()
        if not agent_class.replace(":", ".").rpartition(".")[0]:
            raise UserError(f"{agent_class!r} is no package.module.Class", setting="agent_class")
        self.agent_class = agent_class
        self.env_map = dict(env_map or {})

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Rollout) -> None:
        """Run the process to its end; the reward is the one that it leaves.

        Raises:
            ValueError: the task lacks a part that `env_map` names.
            RuntimeError: the process ended with an exit code other than 0.
        """
        environment = rollout_environment()
        environment |= wire_environment(environment, rollout.mode or "train")
        environment |= {name: _text(task, path) for name, path in self.env_map.items()}
        with tempfile.TemporaryFile() as said:
            command = [sys.executable, "-c", _WORKER, self.agent_class]
            quiet = {"stdin": subprocess.DEVNULL, "stdout": said, "stderr": said}
            process = await asyncio.to_thread(start_child, command, env=environment, start_new_session=True, **quiet)
            try:
                while process.poll() is None:  # noqa: ASYNC110  # nobody tells when a process ends
                    await asyncio.sleep(_LOOK_SECONDS)
            finally:
                kill_group(process.pid)  # what it has left behind, too
            if process.returncode:
                raise RuntimeError(f"{self.agent_class} ended with exit code {process.returncode}: {_last_line(said)}")


def wire_environment(environment: Mapping[str, str], mode: str) -> dict[str, str]:
    """Return agent-lightning 1.0's variables for a process, from its own environment of `rollout_environment()`.

    Args:
        mode: that of the rollout; all but "train" is a validation.
    """
    scheme, netloc, path, _, _ = urlsplit(environment["OPENAI_BASE_URL"])
    before, _, ids = path.removesuffix("/v1").partition("/rollout/")
    way = "train" if mode == "train" else "val"
    return {
        "AGL_OPENAI_BASE_URL": urlunsplit(
            (scheme, netloc, f"{before}/proxy/rollout/{ids}/mode/{way}/openai/v1", "", "")
        ),
        "AGL_EVENT_URL": urlunsplit((scheme, netloc, f"{before}/api/rollouts/{ids}/events", "", "")),
        "AGL_KEY": environment["OPENAI_API_KEY"],
    }


def _text(task: Any, path: str) -> str:
    """Return what a variable is filled with.

    Raises:
        ValueError: the task has no such part, or it cannot be written as JSON.
    """
    if path != "input" and not path.startswith("input."):
        return path
    value = task
    for part in path.split(".")[1:]:
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            raise ValueError(f"env_map: the task has no {path}")
    try:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"env_map: {path} of the task is no JSON: {error}") from error


def _last_line(said: IO[bytes]) -> str:
    size = said.seek(0, 2)
    said.seek(max(0, size - _TOLD))
    lines = said.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
