"""The settings of an agent that is a command: the command, its sandbox and limits, and its reward."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from .settings import COMMAS, Settings

MIB = 1 << 20

TOKENS_OF_COMMAND = 1024
"""Default `max_new_tokens` of an agent that is a command."""
COMMANDS_AT_ONCE = 8
"""Default number of concurrent rollouts of an agent that is a command."""


class HarnessSettings(Settings):
    """An agent that is a command."""

    agent_command: str = ""
    """Command that is the agent, as "python agent.py". It runs once per rollout in a temporary folder and reads
    OPENAI_BASE_URL or ANTHROPIC_BASE_URL. `{prompt}`, `{task_file}`, `{model}` and `{base_url}` in it are replaced."""
    agent_env: list[str] = Field(default=[])
    """Environment variable for the command, as NAME=VALUE, or NAME to copy its value from here; may be given several
    times. Otherwise the command gets only PATH and the language."""
    agent_paths: list[Path] = Field(default=[])
    """File or folder that the command may read, besides the programs and files that it names; may be given several
    times."""
    agent_fields: Annotated[list[str], COMMAS] = Field(default=[])
    """Columns of a task to write to the command's task file, besides id and question; several with commas."""
    scratch_folder: Path | None = None
    """Folder in which the rollouts' folders are kept; by default they are temporary."""

    test_command: str = ""
    """Command that scores a rollout after the agent has ended, in a copy of the task's files with the agent's results:
    1 for the exit code 0, or the number that it writes to the file $REWARD_FILE. By default the task's own tests, else
    the exit code of the agent."""
    agent_reward: str = ""
    """Function that scores a rollout instead, as module:function: it gets the task and the `HarnessResult`."""
    tampering: Literal["restore", "zero"] = "restore"
    """For a rollout that changed protected files, such as tests: undo the change before testing (`restore`), or reward
    0 (`zero`)."""

    sandbox: Literal["process", "bubblewrap", "docker", "kubernetes"] = "process"
    """Sandbox of the command: a `process` with limits and the system's own protection; namespaces by `bubblewrap`; a
    container of `docker`; a Job of `kubernetes`."""
    sandbox_network: Literal["closed", "open"] = "closed"
    """Network of the command: the gateway alone (`closed`), or everything that this computer reaches."""
    sandbox_image: str = ""
    """Default image of the container for `docker` and `kubernetes`."""
    sandbox_namespace: str = "default"
    """Namespace of the Jobs of `kubernetes`."""
    sandbox_seconds: float = Field(default=600.0, gt=0)
    """Default wall-clock limit of the agent in seconds; then all of its processes are killed."""
    test_seconds: float = Field(default=300.0, gt=0)
    """Default wall-clock limit of the test command in seconds; then the reward is 0."""
    sandbox_cpu_seconds: float = Field(default=600.0, gt=0)
    """Limit of processor time in seconds, of all processes of the agent or of the test command."""
    sandbox_cpus: float = Field(default=1.0, gt=0)
    """Processors of a container."""
    sandbox_memory_mib: int = Field(default=2048, ge=16)
    """Limit of memory in MiB, of all processes together."""
    sandbox_processes: int = Field(default=256, ge=4)
    """Limit of processes and threads."""
    sandbox_file_mib: int = Field(default=256, ge=1)
    """Limit of the size of one file in MiB."""
    sandbox_disk_mib: int = Field(default=1024, ge=1)
    """Limit of the size of the rollout's folder in MiB."""
    sandbox_output_kib: int = Field(default=64, ge=1)
    """Size in KiB of the standard output and of the standard error that are kept: beginning and end."""
