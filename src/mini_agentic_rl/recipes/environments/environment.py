"""A world that a model acts in: tasks, and a rollout against an endpoint that ends in a reward.

`Environment` is all that `EnvironmentAgent` needs, whoever wrote the world. `EpisodeEnvironment` makes one of a family
of `datasets.episodes`, other modules beside this one make one of an environment of another package, and one of yours is
a class with these two methods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ...datasets import Row
from ...datasets.episodes import Episodes
from .conversation import Endpoint, Message, converse

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


class EpisodeEnvironment:
    """The environment of a family of tasks: the model talks until the episode ends or `max_turns` calls are made."""

    def __init__(self, episodes: Episodes) -> None:
        """`episodes` is the family."""
        self.episodes = episodes

    def tasks(self, split: str, size: int, seed: int = 0) -> Sequence[Row]:
        """Return tasks of all levels.

        Raises:
            DatasetError: an unknown split, or a size beyond what there is.
        """
        return self.episodes.tasks(split, size, seed)

    async def rollout(self, task: Mapping[str, Any], endpoint: Endpoint) -> Outcome:
        """Play one episode; an answer that was cut off counts as one without a word.

        Raises:
            ValueError: the task lacks a field that the family needs.
            openai.OpenAIError: the endpoint refused a call or could not be reached; a conversation that has outgrown
                the model's context ends instead.
        """
        episode, messages = self.episodes.start(task), self.episodes.opening(task)

        async def follow(reply: Message) -> Sequence[Message]:
            return await asyncio.to_thread(episode.receive, reply)

        turns = await converse(endpoint, messages, follow, tools=self.episodes.tools, max_turns=self.episodes.max_turns)
        scores = await asyncio.to_thread(episode.scores)
        return Outcome({**scores, "turns": float(turns)}, messages[-1].get("content"))
