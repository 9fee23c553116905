"""The agent and the tasks of a job, as settings name them: which go together, and the agent itself."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ..config import COMMAS, HarnessSettings, Settings
from ..datasets import MATH, family_type
from ..environments import ENV, Recipe, load_recipe
from ..errors import UserError
from ..plugins import load_part

ARITHMETIC = "arithmetic"
"""Tasks of an agent that has none of its own."""


class TaskSettings(Settings):
    """An agent and its tasks."""

    env: str | None = None
    """Environment, in place of `agent` and `dataset`: `verifiers:NAME`, `openenv:URL`, `gymnasium:ID` or
    `gymnasium:module:Class`, `reasoning_gym:NAME`, a family of tasks, `module:Class` of an Environment of yours, or the
    name of a plugin."""
    agent: str = "units"
    """Agent: `units` (converts units, calculates, answers), `math` (arithmetic over stories, with a calculator), `sql`
    (with the defaults of `train-sql`), `countdown`, `guess`, `wordle`, `retrieval` or `reasoning_gym` (each for the
    tasks of its name), the name of a plugin, or `module:ClassName` of a LitAgent of yours. The defaults shown are those
    of `units`; others have some of their own, which `--print-config` shows."""
    dataset: str = "units"
    """Tasks: `arithmetic` (generated, for the agent `math`), `medical` (for the SQL agent), `gsm_symbolic`, `gsm8k`,
    those of an agent by its name (as `reasoning_gym:chain_sum`, with the generator), a file (JSONL, JSON, CSV, TSV or
    Parquet) with `question` and `answer`, a folder with such files, or `owner/name` on the Hub. By default those of the
    agent; a data set without an agent is for `math`."""
    difficulty: Annotated[list[int], COMMAS] = Field(default=[1, 2])
    """Levels of generated tasks, from 1 to 4; several with commas, as 1,2."""


def matching_tasks(tasks: TaskSettings, *, is_command: bool = False) -> TaskSettings:
    """Return the settings with an agent and tasks that go together: an agent with tasks of its own brings these, such
    tasks and an environment bring their agent.

    Args:
        is_command: the agent is a command, which takes the tasks of any data set.

    Raises:
        UserError: agent and data set do not belong together.
    """
    if tasks.env is not None:
        return _tasks_of_environment(tasks, tasks.env)
    given = tasks.model_fields_set
    if is_command:
        return tasks if "dataset" in given else tasks.changed(dataset=ARITHMETIC)
    family = family_type(tasks.dataset)
    trained = None if family is None else family.trained_agent()
    agent = None if ":" in tasks.agent else family_type(tasks.agent)
    if "dataset" not in given:
        own = ARITHMETIC if agent is None else agent.dataset or agent.name
        return tasks if tasks.dataset == own else tasks.changed(dataset=own)
    if "agent" not in given:
        own = trained or MATH
        return tasks if tasks.agent == own else tasks.changed(agent=own)
    agent_is_closed = agent is not None and not agent.is_open
    family_is_closed = family is not None and not family.is_open and ":" not in tasks.agent
    if trained != tasks.agent and (agent_is_closed or family_is_closed):
        raise UserError(
            f"the agent {tasks.agent} does not know the tasks of {tasks.dataset}; leave one of the two out",
            setting="dataset",
        )
    return tasks


def _tasks_of_environment(tasks: TaskSettings, env: str) -> TaskSettings:
    """Return the settings with the agent and the tasks of an environment.

    Raises:
        UserError: an agent or a data set is given as well.
    """
    family = family_type(env)
    has_name = family is not None and family.is_environment
    meant = {"agent": env.partition(":")[0] if has_name else ENV + env, "dataset": env if has_name else ENV + env}
    for name, value in meant.items():
        if getattr(tasks, name) not in (value, type(tasks).model_fields[name].default):
            raise UserError(f"an environment has its own: leave `{name}` out", setting="env")
    return tasks.changed(**meant)


def load_agent(tasks: TaskSettings, harness: HarnessSettings, written: Iterable[Path | None]) -> Recipe:
    """Return the agent.

    Args:
        written: files and folders of runs, which an agent that is a command may not read, nor the data set.

    Raises:
        UserError: there is no such agent, a setting of it cannot work, or two are asked for.
    """
    if not harness.agent_command:
        given = next(iter(sorted(harness.model_fields_set - {"agent_command"})), None)
        if given is not None and getattr(harness, given) != type(harness).model_fields[given].get_default():
            raise UserError("is for an agent that is a command: give `agent_command` with it", setting=given)
        return load_recipe(tasks.agent, tasks.dataset)
    if "agent" in tasks.model_fields_set:
        raise UserError("a command is the agent: leave `agent` and `env` out", setting="agent_command")
    hidden = [Path(tasks.dataset), *(path for path in written if path is not None)]
    recipe: Recipe = load_part("harness", setting="agent_command").harness_recipe(harness, hidden)
    return recipe
