"""The agent that a trainer runs in an environment."""

from __future__ import annotations

import inspect
import math
from typing import Any

from ..emitter import emit_reward
from ..litagent import LitAgent
from ..types import NamedResources, Rollout
from .conversation import Endpoint, endpoint_of
from .endpoint import find_llm
from .environment import REWARD, Environment, Outcome
from .own_thread import OwnThread


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
            TypeError: the environment returned no `Outcome`.
            Exception: whatever the environment raises.
        """
        outcome = await self._play(task, endpoint_of(find_llm(resources), rollout))
        rewards = _checked(outcome)
        rollout.output = outcome.output
        emit_reward(rewards, primary_key=REWARD, final=True)

    async def _play(self, task: Any, endpoint: Endpoint) -> Any:
        play = self.environment.rollout
        if inspect.iscoroutinefunction(play):
            return await play(task, endpoint)
        async with OwnThread("environment") as thread:  # it may block
            outcome: Any = await thread.call(play, task, endpoint)
        return await outcome if inspect.isawaitable(outcome) else outcome


def _checked(outcome: Any) -> dict[str, float]:
    """Return the rewards of an outcome.

    Raises:
        TypeError: it is none.
        ValueError: there is no reward, or one is no finite number.
    """
    if not isinstance(outcome, Outcome):
        raise TypeError(f"the environment returned a {type(outcome).__name__}, not an Outcome with rewards")
    if outcome.rewards.get(REWARD) is None:
        raise ValueError(f"the environment gave no {REWARD!r}, only {sorted(outcome.rewards)}")
    rewards = {name: float(value) for name, value in outcome.rewards.items() if value is not None}
    wrong = next((name for name, value in rewards.items() if not math.isfinite(value)), None)
    if wrong is not None:
        raise ValueError(f"the environment's {wrong!r} is {rewards[wrong]}, and not finite")
    return rewards
