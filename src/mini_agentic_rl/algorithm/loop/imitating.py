"""The supervised warm-up of a run, adapter by adapter."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Final

from ...metrics import SFT
from ...tokens import TokenTree
from ...types import Dataset
from ..seeds import tasks_of_step
from .checkpointing import Checkpointing
from .training_run import TrainingRun
from .warm_start import WarmStart, imitate_tree, trees_of, warm_up_settings

_CHECKPOINT_EVERY: Final = 32
"""Optimizer steps between checkpoints: a minute or two of the embedded model on two cores."""


async def imitate(run: TrainingRun, checkpointing: Checkpointing) -> bool:
    """Imitate what the algorithm was given for that and was not imitated before an interruption; False where there is
    nothing to imitate."""
    warm_starts = {
        adapter: start for adapter, start in run.algorithm.warm_starts.items() if start.settings.examples > 0
    }
    if not warm_starts or run.train_dataset is None:
        return False
    for adapter, warm_start in warm_starts.items():
        await _imitate(run, checkpointing, adapter, warm_start, run.train_dataset)
    return True


async def _imitate(
    run: TrainingRun, checkpointing: Checkpointing, adapter: str, warm_start: WarmStart, dataset: Dataset[Any]
) -> None:
    server = run.served.server
    if server is None:
        raise RuntimeError("the policy is not served")
    started = time.perf_counter()
    size, imitated, settings = len(dataset), run.progress.imitated, warm_start.settings
    # From the end of the first epoch, so that reinforcement learning begins with tasks not imitated.
    rows = tasks_of_step(run.settings.seed, size, 0, size)[-settings.examples :]
    conversations = warm_start.conversations([dataset[row] for row in rows])
    trees = trees_of(server.renderer, conversations, warm_start.tools, settings.batch_size)
    taken = imitated.get(adapter, 0)
    if taken == len(trees):
        return
    options = warm_up_settings(run.learner_settings, settings, len(trees))
    learner = await run.policy.run_async(lambda: run.policy.learner(options, adapter))
    await checkpointing.warm_up(learner, taken)
    run.logger.phase(run.named(adapter, "SFT", " "), len(trees))
    run.logger.advance(taken)

    def learn(tree: TokenTree) -> dict[str, float]:
        """Learn a tree and count it: an interruption may not come in between."""
        metrics = imitate_tree(learner, tree)
        imitated[adapter] = imitated.get(adapter, 0) + 1
        return metrics

    for step, tree in enumerate(trees[taken:], start=taken + 1):
        metrics = await run.policy.learn_async(partial(learn, tree))
        run.logger.advance()
        run.log({run.named(adapter, f"{SFT}{name}"): value for name, value in metrics.items()}, step=step)
        now = time.perf_counter()
        run.progress.spend("sft", now - started)
        started = now
        if step % _CHECKPOINT_EVERY == 0:
            await checkpointing.write()
    checkpointing.warmed_up()
