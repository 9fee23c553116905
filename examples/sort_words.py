"""A taskset for the package `verifiers` (0.4): put words into alphabetical order. It needs no network.

pip install 'mini-agentic-rl[environments]'
cd examples && mini-agentic-rl train --env "verifiers:sort_words?words=2" --max-new-tokens 16
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf

WORDS = (
    "apple",
    "bread",
    "chair",
    "dance",
    "eagle",
    "field",
    "grape",
    "house",
    "island",
    "jungle",
    "kettle",
    "lemon",
    "market",
    "number",
    "ocean",
    "paper",
    "queen",
    "river",
    "stone",
    "table",
    "uncle",
    "violin",
    "window",
    "yellow",
    "zebra",
)


class SortConfig(vf.TasksetConfig):
    words: int = 2
    """Words of a task."""
    size: int = 400
    """Number of tasks."""


class SortData(vf.TaskData):
    answer: str


class SortTask(vf.Task[SortData]):
    @vf.reward
    async def in_order(self, trace: Any) -> float:
        """Return 1 for the words in order and nothing else."""
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.2)
    async def nothing_else(self, trace: Any) -> float:
        """Return the share of what was said that is a word of the task, each once."""
        said, wanted = trace.last_reply.split(), self.data.answer.split()
        return len(set(said) & set(wanted)) / max(len(said), len(wanted))


class SortTaskset(vf.Taskset[SortTask, SortConfig]):
    def load(self) -> Iterator[SortTask]:
        """Yield tasks with different words."""
        rng = random.Random(0)
        seen: set[tuple[str, ...]] = set()
        while len(seen) < self.config.size:
            words = tuple(rng.sample(WORDS, self.config.words))
            if words in seen:
                continue
            seen.add(words)
            prompt = f"Sort these words alphabetically: {' '.join(words)}\nAnswer with the words alone."
            yield SortTask(SortData(prompt=prompt, answer=" ".join(sorted(words))), self.config.task)


__all__ = ["SortTaskset"]
