"""The agent and the tasks of the run that an adapter comes from: `eval` and `chat` begin with them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..config import HarnessSettings
from ..errors import UserError
from ..files import read_json
from ..plugins import own_names
from ..policy import AdaptedModelSettings, adapter_folder
from ..trainer import RunFolder
from .agents import TaskSettings

logger = logging.getLogger(__name__)

_CHOICES: Final = ("env", "agent", "dataset")
_DEPTH: Final = 3
"""Folders between a run and its deepest adapter, `checkpoints/step_N/adapter`."""


@dataclass(frozen=True)
class TrainedAs:
    """The agent that a run trained, by its settings."""

    folder: Path
    """Folder of the run."""
    adapter: Path
    """Folder of the adapter."""
    agent: str
    dataset: str
    difficulty: tuple[int, ...]
    agent_command: str

    @property
    def name(self) -> str:
        """The agent's command where it is one, else its name."""
        return self.agent_command or self.agent

    def tasks_for(self, asked: TaskSettings, harness: HarnessSettings) -> TaskSettings:
        """Return the settings with the agent and the tasks of the run, where nothing else is asked for.

        Only agents of this package are taken at the run's word: a file beside weights starts no program and imports
        no module.

        Raises:
            UserError: the agent is none of this package, and has to be named.
        """
        given = asked.model_fields_set
        if harness.agent_command or not given.isdisjoint(_CHOICES):
            return asked
        if self.agent_command or self.agent not in own_names("recipes"):
            setting = "agent_command" if self.agent_command else "env" if self.agent.startswith("env:") else "agent"
            value = self.name.removeprefix("env:")
            raise UserError(
                f"{self.adapter} was trained as {value!r}: give that, or the tasks to measure it on", setting=setting
            )
        tasks: dict[str, Any] = {"agent": self.agent, "dataset": self.dataset}
        if "difficulty" not in given:
            tasks["difficulty"] = list(self.difficulty)
        changed = asked.changed(**tasks)
        if changed != asked:
            levels = ", ".join(map(str, changed.difficulty))
            logger.info("%s was trained as %s on %s, levels %s", self.adapter, self.agent, self.dataset, levels)
        return changed


def trained_as(load: AdaptedModelSettings) -> TrainedAs | None:
    """Return what the adapter among these settings was trained as; None without an adapter, of one that is not in the
    folder of a run, and with a warning where the run's settings are damaged.
    """
    adapter = adapter_folder(load.model if load.adapter is None else load.adapter)
    if adapter is None:
        return None
    for folder in list(adapter.resolve().parents)[:_DEPTH]:
        path = RunFolder(folder).config_path
        try:
            config = read_json(path)
        except (OSError, ValueError) as error:
            logger.warning("%s does not say what %s was trained as: it cannot be read (%s)", path, adapter, error)
            continue
        try:
            tasks = str(config["agent"]), str(config["dataset"]), tuple(int(level) for level in config["difficulty"])
        except (ValueError, TypeError, KeyError):
            continue  # no run, or one of another kind
        return TrainedAs(folder, adapter, *tasks, str(config.get("agent_command") or ""))
    return None
