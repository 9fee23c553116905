"""A taskset of `verifiers` with one turn: a reward of the task's own, and a metric."""

from __future__ import annotations

import verifiers.v1 as vf

WORDS = ("maple", "river", "stone", "cloud", "ember", "ocean", "tiger", "piano", "lemon", "chess")


class ReversalConfig(vf.TasksetConfig):
    size: int = 40


class ReversalData(vf.TaskData):
    word: str


class ReversalTask(vf.Task[ReversalData]):
    @vf.reward
    async def short(self, trace) -> float:
        """More for a shorter answer, so that answers of an untrained model differ."""
        return 1.0 / (1.0 + len(trace.last_reply))

    @vf.reward(weight=2.0)
    async def right(self, trace) -> float:
        return float(trace.last_reply == self.data.word[::-1])

    @vf.metric
    async def letters(self, trace) -> float:
        return float(len(trace.last_reply))


class ReversalTaskset(vf.Taskset[ReversalTask, ReversalConfig]):
    def load(self):
        for number in range(self.config.size):
            word = WORDS[number % len(WORDS)] + str(number)
            yield ReversalTask(
                ReversalData(prompt=f"Reverse {word}.", system_prompt="Reverse words.", word=word), self.config.task
            )


__all__ = ["ReversalTaskset"]
