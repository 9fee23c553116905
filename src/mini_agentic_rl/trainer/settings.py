"""The settings of a run: how many runners it has, and the folder that it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from ..config import COMMAS, Settings
from ..metrics import LoggerName

StrategyName: TypeAlias = Literal["shm", "cs", "ray"]
"""Name of an execution strategy."""


class RunnerSettings(Settings):
    """Settings of the runners, which run the agent."""

    n_runners: int = Field(default=128, ge=1)
    """Rollouts that run at the same time, at most."""
    strategy: StrategyName | None = None
    """Place of the runners: `shm` in this process, `cs` in processes of their own (4 of them, unless `n_runners` says
    otherwise), `ray` as actors of a Ray cluster (needs the `ray` extra). By default `shm`, or `cs` where one of
    AGL_CURRENT_ROLE, AGL_MANAGED_STORE, AGL_SERVER_HOST and AGL_SERVER_PORT is set."""


class RunSettings(Settings):
    """The folder of a run, and where its metrics go."""

    output_dir: Path = Path("outputs/run")
    """Folder of the run: configuration, metrics, adapter, checkpoints, rollouts, report."""
    console: bool = True
    """Show progress and metrics on the console."""
    loggers: Annotated[list[LoggerName], COMMAS] = Field(default=[])
    """Services that get metrics besides the console and `metrics.jsonl`, also `swanlab`, `mlflow`, `trackio` or one of
    a plugin; several with commas, or given several times."""
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Port at which Prometheus reads the numbers of the run, as /metrics; 0 takes a free one. By default none."""
    metrics_host: str = "127.0.0.1"
    """Address of that port; 0.0.0.0 lets other computers read the numbers, without a key."""
    resume: bool = False
    """Continue the run in the output folder from its last checkpoint."""
    overwrite: bool = False
    """Replace the run in the output folder."""
