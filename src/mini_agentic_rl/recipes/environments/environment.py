"""A world that a model acts in: tasks, and a rollout against an endpoint that ends in a reward.

`Environment` is all that `EnvironmentAgent` needs, whoever wrote the world. `EpisodeEnvironment` makes one of a family
of `datasets.episodes`; one of yours is a class with these two methods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from openai import BadRequestError

from ...datasets import Row
from ...datasets.episodes import Episodes
from ..endpoint import outgrew_context, shared_client

REWARD = "reward"
"""The name of the reward that is trained."""


@dataclass(frozen=True)
class Endpoint:
    """The address where a rollout's model answers, and the settings that its calls are sampled with."""

    base_url: str
    model: str
    api_key: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The end of a rollout."""

    rewards: Mapping[str, float]
    """`reward`, which is trained, and what else was counted."""
    output: Any = None
    """Output that the rollout's record keeps."""


class Environment(Protocol):
    """A world with tasks."""

    def tasks(self, split: str, size: int, seed: int = 0) -> Sequence[Row]:
        """Return tasks of "train", "val" or "test", different ones in each."""
        ...

    async def rollout(self, task: Mapping[str, Any], endpoint: Endpoint) -> Outcome:
        """Let the model behind an OpenAI-compatible endpoint work on a task, and return how that ended."""
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
        client = shared_client(endpoint.base_url, endpoint.api_key)
        episode, messages = self.episodes.start(task), self.episodes.opening(task)
        sampling = (
            {"tools": list(self.episodes.tools), **endpoint.sampling} if self.episodes.tools else endpoint.sampling
        )
        turns = 0
        while turns < self.episodes.max_turns:
            try:
                completion = await client.chat.completions.create(
                    model=endpoint.model, messages=cast(Any, messages), **cast(Any, sampling)
                )
            except BadRequestError as error:
                if turns == 0 or not outgrew_context(error):
                    raise
                break
            turns += 1
            choice = completion.choices[0]
            reply = choice.message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)
            messages.append(reply)
            heard = {"role": "assistant", "content": ""} if choice.finish_reason == "length" else reply
            follows = await asyncio.to_thread(episode.receive, heard)
            messages += follows
            if not follows:
                break
        scores = await asyncio.to_thread(episode.scores)
        return Outcome({**scores, "turns": float(turns)}, messages[-1].get("content"))
