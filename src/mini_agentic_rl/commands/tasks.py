"""Agents and tasks: those of the settings, and those of the run that trained an adapter."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, cast, get_args

from pydantic import Field

from ..config import COMMAS, HarnessSettings, LightningEnvVar, Settings, resolve_str_env_var
from ..datasets import MATH, family_type
from ..errors import UserError
from ..execution import Role
from ..files import read_json
from ..plugins import load_part, own_names
from ..policy import AdaptedModelSettings, adapter_folder
from ..trainer import RunFolder

if TYPE_CHECKING:
    from ..environments import Recipe

logger = logging.getLogger(__name__)

_DEPTH: Final = 3
"""Levels of folders from a run to its deepest adapter, `checkpoints/step_N/adapter`."""
ARITHMETIC: Final = "arithmetic"
"""Default tasks of an agent without tasks of its own."""


class TaskSettings(Settings):
    """An agent and its tasks."""

    env: str | None = None
    """Environment, instead of `agent` and `dataset`: `verifiers:NAME`, `openenv:URL`, `gymnasium:ID` or
    `gymnasium:module:Class`, `reasoning_gym:NAME`, a task family, `module:Class` of your own Environment, or the name
    of a plugin."""
    agent: str = "units"
    """Agent: `units` (converts units, calculates, answers), `math` (arithmetic over stories, with a calculator), `sql`
    (with the defaults of `train-sql`), `countdown`, `guess`, `retrieval` or `reasoning_gym` (each for the
    tasks of its name), the name of a plugin, or `module:ClassName` of your own LitAgent. The defaults shown are those
    of `units`; `--print-config` shows those of another agent."""
    dataset: str = "units"
    """Tasks: `arithmetic` (generated, for the agent `math`), `medical` (for the SQL agent), `gsm_symbolic`, `gsm8k`,
    those of an agent by its name (as `reasoning_gym:chain_sum`, with the generator), a file (JSONL, JSON, CSV, TSV or
    Parquet) with `question` and `answer`, a folder with such files, or `owner/name` on the Hub. By default those of the
    agent; a data set without an agent is for `math`."""
    difficulty: Annotated[list[int], COMMAS] = Field(default=[1, 2])
    """Levels of generated tasks, from 1 to 4; several with commas, as 1,2."""


def matching_tasks(tasks: TaskSettings, *, is_command: bool = False) -> TaskSettings:
    """Return the settings with matching agent and tasks: an agent brings its tasks, and tasks or an environment bring
    their agent.

    Args:
        is_command: the agent is a command, which accepts the tasks of any data set.

    Raises:
        UserError: agent and data set do not belong together.
    """
    if tasks.env is not None:
        return _tasks_of_environment(tasks, tasks.env)
    given = tasks.model_fields_set
    if is_command:
        return tasks if "dataset" in given else tasks.changed(dataset=ARITHMETIC)
    family = family_type(tasks.dataset)
    agent_of_tasks = None if family is None else family.trained_agent()
    agent = None if ":" in tasks.agent else family_type(tasks.agent)
    if "dataset" not in given:
        dataset = ARITHMETIC if agent is None else agent.dataset or agent.name
        return tasks if tasks.dataset == dataset else tasks.changed(dataset=dataset)
    if "agent" not in given:
        name = agent_of_tasks or MATH
        return tasks if tasks.agent == name else tasks.changed(agent=name)
    agent_is_closed = agent is not None and not agent.is_open
    family_is_closed = family is not None and not family.is_open and ":" not in tasks.agent
    if agent_of_tasks != tasks.agent and (agent_is_closed or family_is_closed):
        raise UserError(
            f"the agent {tasks.agent} cannot do the tasks of {tasks.dataset}: leave one of the two out",
            setting="dataset",
        )
    return tasks


def _tasks_of_environment(tasks: TaskSettings, env: str) -> TaskSettings:
    """Return the settings with the agent and the tasks of an environment."""
    from ..environments import ENV

    family = family_type(env)
    has_name = family is not None and family.is_environment
    names = {"agent": env.partition(":")[0] if has_name else ENV + env, "dataset": env if has_name else ENV + env}
    for name, value in names.items():
        if getattr(tasks, name) not in (value, type(tasks).model_fields[name].default):
            raise UserError(f"an environment has its own: leave `{name}` out", setting="env")
    return tasks.changed(**names)


def load_agent(tasks: TaskSettings, harness: HarnessSettings, written: Iterable[Path | None]) -> Recipe:
    """Return the agent.

    Args:
        written: files and folders of runs, hidden from an agent that is a command, as is the data set.

    Raises:
        UserError: there is no such agent, one of its settings is invalid, or two agents are given.
    """
    if not harness.agent_command:
        from ..environments import load_recipe

        given = next(iter(sorted(harness.model_fields_set - {"agent_command"})), None)
        if given is not None and getattr(harness, given) != type(harness).model_fields[given].get_default():
            raise UserError("is for an agent that is a command: give `agent_command` with it", setting=given)
        return load_recipe(tasks.agent, tasks.dataset)
    if "agent" in tasks.model_fields_set:
        raise UserError("a command is the agent: leave `agent` and `env` out", setting="agent_command")
    hidden = [Path(tasks.dataset), *(path for path in written if path is not None)]
    recipe: Recipe = load_part("harness", setting="agent_command").harness_recipe(harness, hidden)
    return recipe


@dataclass(frozen=True)
class TrainedAs:
    """The agent that a run trained, by its settings."""

    folder: Path
    """Folder of the run."""
    adapter: Path
    """Folder of the adapter."""
    tasks: TaskSettings
    agent_command: str

    @property
    def name(self) -> str:
        """The agent's command where it is one, else its name."""
        return self.agent_command or self.tasks.agent

    def tasks_for(self, settings: TaskSettings, harness: HarnessSettings) -> TaskSettings:
        """Return the settings with the agent and the tasks of the run, unless others are given.

        A run folder selects only agents of this package: a file beside weights must not start a program or import a
        module.

        Raises:
            UserError: the agent is not of this package and has to be named.
        """
        if harness.agent_command or not settings.model_fields_set.isdisjoint(("env", "agent", "dataset")):
            return settings
        tasks = self.tasks
        if self.agent_command or tasks.agent not in own_names("recipes"):
            setting = "agent_command" if self.agent_command else "env" if tasks.agent.startswith("env:") else "agent"
            value = self.name.removeprefix("env:")
            raise UserError(
                f"{self.adapter} was trained as {value!r}: give that, or the tasks to measure it on", setting=setting
            )
        levels = settings if "difficulty" in settings.model_fields_set else tasks
        changed = settings.changed(agent=tasks.agent, dataset=tasks.dataset, difficulty=levels.difficulty)
        if changed != settings:
            shown = ", ".join(map(str, changed.difficulty))
            logger.info("%s was trained as %s on %s, levels %s", self.adapter, tasks.agent, tasks.dataset, shown)
        return changed


def trained_as(load: AdaptedModelSettings) -> TrainedAs | None:
    """Return the agent that the adapter of these settings was trained as; None without an adapter or if it is not in a
    run folder. Damaged run settings are logged as a warning."""
    adapter = adapter_folder(load.model if load.adapter is None else load.adapter)
    if adapter is None:
        return None
    for folder in list(adapter.resolve().parents)[:_DEPTH]:
        path = RunFolder(folder).config_path
        try:
            config = read_json(path)
        except (OSError, ValueError) as error:
            logger.warning("%s cannot be read (%s): the agent of %s is unknown", path, error, adapter)
            continue
        try:
            tasks = TaskSettings(**{name: config[name] for name in ("agent", "dataset", "difficulty")})
        except (ValueError, TypeError, KeyError):
            continue  # not a run folder, or that of another kind of run
        return TrainedAs(folder, adapter, tasks, str(config.get("agent_command") or ""))
    return None


def check_model(model: str, device: str) -> None:
    """Check that the model and the device exist. The embedded model is downloaded if needed.

    Raises:
        UserError: there is no such model or device.
    """
    from transformers import AutoConfig

    from ..policy import cannot_load, resolve_device, resolve_model

    resolve_device(device)
    path = resolve_model(model)
    try:
        AutoConfig.from_pretrained(path)
    except Exception as error:  # a damaged file may raise anything
        raise cannot_load(model, error) from error


def current_role() -> Role:
    """Return the role of this process by AGL_CURRENT_ROLE; `both` if it is not set.

    Raises:
        UserError: it has another value.
    """
    role = resolve_str_env_var(LightningEnvVar.AGL_CURRENT_ROLE, fallback="both")
    if role not in get_args(Role):
        raise UserError(f"AGL_CURRENT_ROLE={role!r}: set it to {', '.join(get_args(Role))}, or leave it unset")
    return cast(Role, role)
