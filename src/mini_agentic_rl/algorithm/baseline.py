"""`Baseline`: runs every task through the agent and logs what came of it. For trying an agent out, not for training."""

from __future__ import annotations

import logging
from typing import Any

from ..types import Dataset, EnqueueRolloutRequest
from .base import Algorithm
from .rollouts import run_rollouts

logger = logging.getLogger(__name__)


class FastAlgorithm(Algorithm):
    """An algorithm quick enough for `Trainer.dev`."""


class Baseline(FastAlgorithm):
    """Every training task `n_epochs` times, then every validation task once; rewards are logged, nothing changes."""

    def __init__(self, *, n_epochs: int = 1) -> None:
        super().__init__()
        if n_epochs < 1:
            raise ValueError(f"n_epochs must be 1 or more, not {n_epochs}")
        self.n_epochs = n_epochs

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Run all, in order."""
        context = self.context
        resources_id = None
        if context.initial_resources:
            resources_id = (await context.store.add_resources(context.initial_resources)).resources_id
        train = [train_dataset[i] for i in range(len(train_dataset))] if train_dataset is not None else []
        val = [val_dataset[i] for i in range(len(val_dataset))] if val_dataset is not None else []
        requests = [
            EnqueueRolloutRequest(input=task, mode="train", resources_id=resources_id)
            for _ in range(self.n_epochs)
            for task in train
        ] + [EnqueueRolloutRequest(input=task, mode="val", resources_id=resources_id) for task in val]
        context.logger.phase("baseline", len(requests))
        for finished in await run_rollouts(context.store, requests, context.logger.advance):
            rollout = finished.rollout
            logger.info(
                "rollout %s (%s) %s: reward %s, %d LLM calls, %d spans%s",
                rollout.rollout_id,
                rollout.mode,
                rollout.status,
                finished.reward,
                len(finished.records),
                len(finished.spans),
                f", error: {finished.error}" if finished.error else "",
            )
