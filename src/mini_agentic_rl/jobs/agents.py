"""Find the agent of a job: a recipe by its name, a class of the user, or a command."""

from __future__ import annotations

from ..errors import UserError
from ..recipes import Recipe, load_recipe
from ..recipes.harness import HarnessSettings, harness_recipe
from .config import TaskSettings


def load_agent(tasks: TaskSettings, harness: HarnessSettings) -> Recipe:
    """Return the agent.

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
    return harness_recipe(harness)
