"""The settings of an agent that is a command: the command, its sandbox and limits, and what it is worth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from .settings import COMMAS, Settings

MIB = 1 << 20

TOKENS_OF_COMMAND = 1024
"""Tokens of a call of a program that works on files, where nothing else is said."""
COMMANDS_AT_ONCE = 8
"""Rollouts at the same time, where nothing else is said: each is at least one program."""


class HarnessSettings(Settings):
    """An agent that is a command."""

    agent_command: str = ""
    """Command that is the agent, as "python agent.py": run once per rollout in a folder of its own, it reads
    OPENAI_BASE_URL or ANTHROPIC_BASE_URL. `{prompt}`, `{task_file}`, `{model}` and `{base_url}` in it are replaced."""
    agent_env: list[str] = Field(default=[])
    """Environment variable for the command, as NAME=VALUE, or as NAME alone where it has the value of here; may be
    given several times. Of the others the command gets only PATH and the language."""
    agent_paths: list[Path] = Field(default=[])
    """File or folder, beside programs and files that the command names, that it may read; may be given several
    times."""
    agent_fields: Annotated[list[str], COMMAS] = Field(default=[])
    """Columns of a task, beside its id and question, that the command finds in its task file; several with commas."""
    scratch_folder: Path | None = None
    """Folder for the rollouts' folders, which then stay, to be looked at; by default they are temporary."""

    test_command: str = ""
    """Command that decides what a rollout is worth once the agent has ended, in a copy of the task's files with the
    agent's results: 1 for the exit code 0, or the number that it writes to the file $REWARD_FILE. By default the task's
    own tests, else the exit code of the agent."""
    agent_reward: str = ""
    """Function of yours that decides it instead, as module:function: it gets the task and the `HarnessResult`."""
    tampering: Literal["restore", "zero"] = "restore"
    """Answer to a rollout that changed protected files, as tests: undo the change before testing (`restore`), or reward
    0 (`zero`)."""

    sandbox: Literal["process", "bubblewrap", "docker", "kubernetes"] = "process"
    """Place where the command runs: a `process` with limits, and with what the system can close; namespaces by
    `bubblewrap`; a container of `docker`; a Job of `kubernetes`."""
    sandbox_network: Literal["closed", "open"] = "closed"
    """Network of the command: the gateway alone (`closed`), or all that this computer reaches."""
    sandbox_image: str = ""
    """Image of the container for `docker` and `kubernetes`, where the task names none."""
    sandbox_namespace: str = "default"
    """Namespace of the Jobs of `kubernetes`."""
    sandbox_seconds: float = Field(default=600.0, gt=0)
    """Seconds that the agent may take, where the task says nothing else; then all of its processes are killed."""
    test_seconds: float = Field(default=300.0, gt=0)
    """Seconds that the test command may take, where the task says nothing else; then the reward is 0."""
    sandbox_cpu_seconds: float = Field(default=600.0, gt=0)
    """Seconds of processor time that the agent, or the test command, may take with all of its processes."""
    sandbox_cpus: float = Field(default=1.0, gt=0)
    """Processors of a container."""
    sandbox_memory_mib: int = Field(default=2048, ge=16)
    """Memory in MiB of all processes together."""
    sandbox_processes: int = Field(default=256, ge=4)
    """Number of processes and threads."""
    sandbox_file_mib: int = Field(default=256, ge=1)
    """Size in MiB of one file."""
    sandbox_disk_mib: int = Field(default=1024, ge=1)
    """Size in MiB of all that is in the rollout's folder."""
    sandbox_output_kib: int = Field(default=64, ge=1)
    """Size in KiB up to which standard output, and standard error, are kept: their beginning and their end."""
