"""A world that a model acts in: tasks, and a rollout against an endpoint that ends in a reward.

`Environment` is all that `EnvironmentAgent` needs, whoever wrote the world. `EpisodeEnvironment` plays the tasks of a
family of episodes, `integrations.environments` has those of other packages, and one of yours is a class with these two
methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ..datasets import Row
from .conversation import Endpoint

REWARD = "reward"
"""The name of the reward that is trained."""
DEFAULT_SIZE = 1000
"""Tasks that a job asks for where no number is given."""


@dataclass(frozen=True)
class Outcome:
    """The end of a rollout."""

    rewards: Mapping[str, float]
    """`reward`, which is trained, and what else was counted."""
    output: Any = None
    """Output that the rollout's record keeps."""


@runtime_checkable
class Environment(Protocol):
    """A world with tasks. One object serves all rollouts at once: it keeps nothing of one."""

    def tasks(self, split: str, size: int, seed: int = 0) -> Sequence[Row]:
        """Return at most `size` tasks of "train", "val" or "test", different ones in each.

        A task is a mapping of JSON values. Its `question` tells it from others where two runs are compared.
        """
        ...

    async def rollout(self, task: Mapping[str, Any], endpoint: Endpoint) -> Outcome:
        """Let the model behind an OpenAI-compatible endpoint work on a task, and return how that ended.

        It may also be an ordinary function, which may block: it is then called in a thread of its own.
        """
        ...
