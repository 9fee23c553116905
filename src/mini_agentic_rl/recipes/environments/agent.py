"""The agent that a trainer runs in an environment."""

from __future__ import annotations

from typing import Any

from ...datasets.episodes import find_episodes
from ...emitter import emit_reward
from ...litagent import LitAgent
from ...types import NamedResources, Rollout
from ..endpoint import find_llm, rollout_url
from ..recipe import Demonstrations, Recipe
from .environment import REWARD, Endpoint, Environment, EpisodeEnvironment


class EnvironmentAgent(LitAgent[Any]):
    """Lets the model work on tasks of an environment, and emits the rewards that this gives."""

    def __init__(self, environment: Environment) -> None:
        """`environment` is shared by all rollouts."""
        super().__init__()
        self.environment = environment

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Rollout) -> None:
        """Run one rollout of the environment.

        Raises:
            ValueError: the resources hold no LLM, or several and none named "llm"; or the environment gave no reward,
                or one that is no finite number.
        """
        llm = find_llm(resources)
        endpoint = Endpoint(rollout_url(llm, rollout), llm.model, llm.api_key, llm.sampling_parameters)
        outcome = await self.environment.rollout(task, endpoint)
        if REWARD not in outcome.rewards:
            raise ValueError(f"the environment gave no {REWARD!r}, only {sorted(outcome.rewards)}")
        rollout.output = outcome.output
        emit_reward(dict(outcome.rewards), primary_key=REWARD, final=True)


def episodes_recipe(name: str) -> Recipe:
    """Return the agent of a family of tasks, by the name of its data set, and the demonstrations of its expert.

    Raises:
        DatasetError: there is none of this name, or no such generator.
        MissingPackageError: the extra that it needs is not installed.
    """
    episodes = find_episodes(name)
    demonstrations = Demonstrations(episodes.demonstration, lambda task: episodes.tools, episodes.can_be_shown)
    return Recipe(EnvironmentAgent(EpisodeEnvironment(episodes)), (), demonstrations)
