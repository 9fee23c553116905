"""`run_ppo(config, train_dataset, val_dataset)`: a training of agent-lightning 1.0 in this process.

Its gateway, its controller and verl are what this package is; the section `agentlightning` of the configuration says
which class is the agent. Nothing has to be started before.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...algorithm import VERL
from ...errors import UserError
from ...recipes.agent_classes import AgentClassProgram
from ...trainer import Trainer

logger = logging.getLogger(__name__)


def run_ppo(
    config: Mapping[str, Any],
    train_dataset: Sequence[Mapping[str, Any]] | None,
    val_dataset: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Train the agent that `config.agentlightning.local` names, on rows as tasks.

    Args:
        config: verl's, with the section of agent-lightning 1.0; mappings or OmegaConf.
        train_dataset: rows; `env_map` says which parts of them the agent is given.
        val_dataset: rows to measure on; none measures nothing.

    Raises:
        UserError: the configuration names no local agent class, or asks for what cannot be honoured.
    """
    if not train_dataset:
        raise UserError("run_ppo was given no rows to train on", setting="train_dataset")
    own = _section(config, "agentlightning")
    local, asked = _section(own, "local"), _section(own, "async_rollout")
    if own.get("hooks"):
        raise UserError(
            "agentlightning.hooks are not run here: let the agent post its reward to AGL_EVENT_URL, or score rollouts "
            "with a Hook of Trainer(hooks=…)"
        )
    if not local.get("agent_class"):
        raise UserError(
            "agentlightning.local.agent_class names the agent, as package.module.Class; there is no Kubernetes Job for "
            "each rollout: runners are pods"
        )
    agent = AgentClassProgram(
        str(local["agent_class"]), {str(k): str(v) for k, v in _section(local, "env_map").items()}
    )
    options: dict[str, Any] = {"rollout_timeout": float(own.get("rollout_timeout_seconds") or 1800)}
    if asked.get("enabled"):
        options["max_staleness"] = 1
    if own.get("max_ppo_update_times"):
        options["epochs_per_batch"] = int(own["max_ppo_update_times"])
    algorithm = VERL(config, **options)
    folder = _folder(_section(config, "trainer"))
    logger.info("training %s into %s", agent.agent_class, folder)
    Trainer(algorithm=algorithm, output_dir=folder).fit(agent, list(train_dataset), val_dataset=list(val_dataset or ()))


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return {} if found is None else found


def _folder(trainer: Mapping[str, Any]) -> Path:
    if trainer.get("default_local_dir"):
        return Path(str(trainer["default_local_dir"]))
    return Path("outputs") / str(trainer.get("experiment_name") or "agentlightning")
