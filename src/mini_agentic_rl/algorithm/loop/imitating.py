"""The supervised warm-up of a run, adapter by adapter."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ...metrics import SFT
from ...types import Dataset
from ..seeds import tasks_of_step
from .training_run import TrainingRun
from .warm_start import WarmStart, warm_up


async def imitate(run: TrainingRun) -> bool:
    """Imitate what the algorithm was given for that; False where there is nothing to imitate."""
    warm_starts = {
        adapter: start for adapter, start in run.algorithm.warm_starts.items() if start.settings.examples > 0
    }
    if not warm_starts or run.train_dataset is None:
        return False
    started = time.perf_counter()
    for adapter, warm_start in warm_starts.items():
        await _imitate(run, adapter, warm_start, run.train_dataset)
    run.progress.spend("sft", time.perf_counter() - started)
    return True


async def _imitate(run: TrainingRun, adapter: str, warm_start: WarmStart, dataset: Dataset[Any]) -> None:
    server = run.served.server
    if server is None:
        raise RuntimeError("the policy is not served")
    size = len(dataset)
    # From the end of the first epoch, so that reinforcement learning begins with tasks not imitated.
    rows = tasks_of_step(run.settings.seed, size, 0, size)[-warm_start.settings.examples :]
    conversations = warm_start.conversations([dataset[row] for row in rows])
    run.logger.phase(run.named(adapter, "SFT", " "), -(-len(conversations) // warm_start.settings.batch_size))

    def on_step(step: int, metrics: Mapping[str, float]) -> None:
        run.logger.advance()
        run.log({run.named(adapter, f"{SFT}{name}"): value for name, value in metrics.items()}, step=step + 1)

    await warm_up(
        run.policy,
        server.renderer,
        conversations,
        warm_start.tools,
        warm_start.settings,
        run.learner_settings,
        on_step,
        adapter,
    )
