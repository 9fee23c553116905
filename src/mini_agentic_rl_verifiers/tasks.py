"""Tasks of this package's environments as a taskset of `verifiers`, which `vf.load_environment` loads by its id."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import verifiers.v1 as vf

from mini_agentic_rl.environments import load_environment

REWARDS = "rewards"
"""Key of a trace's `info` under which the program stores the rewards of the environment."""


class WorldConfig(vf.TasksetConfig):  # type: ignore[misc]  # the package has no types where it is not installed
    """The configuration of the taskset."""

    world: str = "countdown"
    """Environment of this package, as `train --env` takes it: a family of tasks, or module:Class."""
    split: str = "train"
    """Part of the tasks."""
    size: int = 1000
    """Number of tasks at most."""
    seed: int = 0
    """Seed that the tasks are drawn with."""


class WorldData(vf.TaskData):  # type: ignore[misc]
    """A task, with its row of the environment."""

    world: str
    row: dict[str, Any]


class WorldTask(vf.Task[WorldData]):  # type: ignore[misc]
    """A task of this package, scored by the rewards that its environment gave to the program."""

    @vf.reward  # type: ignore[untyped-decorator]
    async def reward(self, trace: Any) -> float:
        """Return the trained reward."""
        return float(trace.info[REWARDS]["reward"])

    @vf.metric  # type: ignore[untyped-decorator]
    async def counted(self, trace: Any) -> dict[str, float]:
        """Return the other rewards of the environment, as metrics."""
        return {name: float(value) for name, value in trace.info[REWARDS].items() if name != "reward"}


class WorldTaskset(vf.Taskset[WorldTask, WorldConfig]):  # type: ignore[misc]
    """The tasks of an environment of this package."""

    def load(self) -> Iterable[WorldTask]:
        """Yield them in the order of the environment."""
        config = self.config
        environment = load_environment(config.world)
        for row in environment.tasks(config.split, config.size, config.seed):
            data = WorldData(
                id=str(row.get("id", "")), prompt=str(row.get("question", "")), world=config.world, row=_plain(row)
            )
            yield WorldTask(data, config.task)


def _plain(row: Any) -> dict[str, Any]:
    """Return a row with JSON values only."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(row), default=str))
    return plain
