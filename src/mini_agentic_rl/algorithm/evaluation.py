"""Measuring: the same agent, the same endpoint, greedy, and nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..metrics import MetricsLogger
from ..store import LightningStore
from ..types import Dataset, EnqueueRolloutRequest, RolloutConfig, RolloutMode
from .rollouts import FinishedRollout, count_untrainable, run_rollouts
from .seeds import derive_seed


@dataclass(frozen=True)
class Evaluation:
    """What one measurement found."""

    name: str
    rollouts: Sequence[FinishedRollout]
    """Problem by problem, `samples` of each together."""
    samples: int

    @property
    def rewards(self) -> list[float]:
        """One number a rollout. A failed one, one without a model call and one without a reward count as 0."""
        return [0.0 if finished.untrainable else finished.reward or 0.0 for finished in self.rollouts]

    @property
    def correct(self) -> list[int]:
        """For each problem, how many of its samples earned a reward of at least 1."""
        right = [reward >= 1.0 for reward in self.rewards]
        return [sum(right[i : i + self.samples]) for i in range(0, len(right), self.samples)]

    @property
    def accuracy(self) -> float:
        """Share of rollouts with a reward of at least 1."""
        return sum(self.correct) / max(1, len(self.rollouts))


async def evaluate(
    store: LightningStore,
    dataset: Dataset[Any],
    *,
    name: str,
    resources_id: str,
    logger_: MetricsLogger,
    size: int | None = None,
    samples: int = 1,
    mode: RolloutMode = "val",
    seed: int = 0,
    rollout_timeout: float | None = None,
) -> Evaluation:
    """Run the first `size` tasks, `samples` times each; a rollout is ended after `rollout_timeout` seconds."""
    count = len(dataset) if size is None else min(size, len(dataset))
    requests = [
        EnqueueRolloutRequest(
            input=dataset[index],
            mode=mode,
            resources_id=resources_id,
            config=RolloutConfig(timeout_seconds=rollout_timeout),
            metadata={"evaluation": name, "sampling_seed": derive_seed(seed, "evaluation", index, sample)},
        )
        for index in range(count)
        for sample in range(samples)
    ]
    logger_.phase(f"evaluation: {name}", len(requests))
    finished = await run_rollouts(store, requests, logger_.advance)
    count_untrainable(finished, "count as wrong")
    return Evaluation(name, finished, samples)
