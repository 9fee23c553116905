"""The settings of runners on Ray (`integrations/ray`). Reading them needs no Ray."""

from __future__ import annotations

from pydantic import Field

from ..config import Settings


class RaySettings(Settings):
    """Settings of runners that are actors of a Ray cluster."""

    address: str = Field(default="auto", json_schema_extra={"option": "--ray-address"})
    """Ray cluster of the runners: `auto` is the cluster of this computer or of RAY_ADDRESS, HOST:PORT the cluster
    with that head, `local` a cluster that is started on this computer for the run and ended with it."""
    runner_cpus: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Processors that Ray reserves for each runner. A fraction is enough for agents that mostly wait for the model."""
    runner_gpus: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """GPUs that Ray reserves for each runner, for agents with models of their own."""
    runner_env: str | None = None
    """Environment of the runners: a folder, which becomes their working directory on every node, the URL of a ZIP file
    of such a folder, or a YAML file with a runtime environment of Ray (`pip`, `env_vars`, `working_dir`, …)."""
