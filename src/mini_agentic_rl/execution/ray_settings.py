"""The settings of runners on Ray, and the environment that they are given. Reading them needs no Ray."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import Field

from ..config import Settings
from ..errors import UserError
from ..redaction import remember_secrets

_FILES: Final = (".yaml", ".yml", ".json")


class RaySettings(Settings):
    """Settings of runners that are actors of a Ray cluster."""

    address: str = Field(default="auto", json_schema_extra={"option": "--ray-address"})
    """Ray cluster of the runners: `auto` is the one that this computer belongs to (RAY_ADDRESS names another),
    HOST:PORT the one with that head, `local` one that is started on this computer for the run and ended with it."""
    runner_cpus: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Processors that Ray sets aside for each runner, which may be a part of one: agents that mostly wait for the model
    need little."""
    runner_gpus: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Graphics cards that Ray sets aside for each runner, for agents with models of their own."""
    runner_env: str | None = None
    """Environment of the runners: a folder, which becomes their working directory on every node, the URL of one in a
    ZIP file, or a YAML file with a runtime environment as Ray describes it (`pip`, `env_vars`, `working_dir`, …)."""
    min_runners: int = Field(default=1, ge=0)
    """Runners that stay on Ray while there is nothing to run; with more rollouts there are more, up to `n_runners`."""
    runner_idle_seconds: float = Field(default=60.0, ge=0, allow_inf_nan=False)
    """Seconds for which runners must have been too many before they are given back to Ray."""


def runtime_environment(given: str | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return Ray's runtime environment for what `runner_env` says; keys in it are hidden from now on.

    Raises:
        UserError: it names nothing, or a file that holds no environment.
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        remember_secrets(given)
        return dict(given)
    path = Path(given).expanduser()
    if "://" in given or path.is_dir():
        return {"working_dir": given if "://" in given else str(path.resolve())}
    if path.suffix not in _FILES or not path.is_file():
        raise UserError(
            f"{given} is neither a folder, nor the URL of one, nor a YAML file with a runtime environment",
            setting="runner_env",
        )
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{given} cannot be read: {' '.join(str(error).split())}", setting="runner_env") from error
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise UserError(
            f"{given} holds no runtime environment: write names and values, as `env_vars: {{NAME: value}}`",
            setting="runner_env",
        )
    remember_secrets(found)
    return found
