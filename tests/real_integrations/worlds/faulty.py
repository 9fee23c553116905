"""A taskset of `verifiers` whose tasks go wrong in different ways."""

from __future__ import annotations

import verifiers.v1 as vf


class FaultyTask(vf.Task[vf.TaskData]):
    async def setup(self, trace, runtime) -> None:
        if self.data.prompt == "raises":
            raise ValueError("it fell")

    def hooks(self, attr):
        return [] if self.data.prompt == "scores nothing" else super().hooks(attr)

    @vf.reward
    async def given(self, trace) -> float:
        return 1.0


class FaultyTaskset(vf.Taskset[FaultyTask]):
    def load(self):
        for prompt in ("raises", "scores nothing", "is fine"):
            yield FaultyTask(vf.TaskData(prompt=prompt), self.config.task)


__all__ = ["FaultyTaskset"]
