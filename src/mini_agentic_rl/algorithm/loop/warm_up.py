"""The supervised warm-up of a run: each adapter imitates written conversations, in the tokens that the agent will see.

The conversations are rendered by the gateway's own renderer and grown into the same trees that reinforcement learning
trains, so a system prompt that all examples share is computed once per batch.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import torch

from ...gateway import ChatRenderer
from ...metrics import SFT
from ...policy import Learner, LearnerSettings, LossInputs, LossOutputs, TermStreams
from ...tokens import TokenTree, pack
from ...types import Dataset
from ..seeds import tasks_of_step
from ..settings import WarmStartSettings
from .checkpointing import Checkpointing
from .training_run import TrainingRun
from .warm_start import Messages, WarmStart

_CHECKPOINT_EVERY: Final = 32
"""Optimizer steps between checkpoints: a minute or two of the embedded model on two cores."""


async def warm_up(run: TrainingRun, checkpointing: Checkpointing) -> bool:
    """Imitate what the algorithm was given for that, adapter by adapter, from where an interruption has left off;
    return False where there is nothing."""
    warm_starts = {
        adapter: start for adapter, start in run.algorithm.warm_starts.items() if start.settings.examples > 0
    }
    if not warm_starts or run.train_dataset is None:
        return False
    for adapter, warm_start in warm_starts.items():
        await _warm_up_adapter(run, checkpointing, adapter, warm_start, run.train_dataset)
    return True


async def _warm_up_adapter(
    run: TrainingRun, checkpointing: Checkpointing, adapter: str, warm_start: WarmStart, dataset: Dataset[Any]
) -> None:
    started = time.perf_counter()
    server, settings, imitated = run.served.server, warm_start.settings, run.progress.imitated
    if server is None:
        raise RuntimeError("the policy is not served")
    size = len(dataset)
    # From the end of the first epoch, so that reinforcement learning begins with tasks not imitated.
    rows = tasks_of_step(run.settings.seed, size, 0, size)[-settings.examples :]
    conversations = warm_start.conversations([dataset[row] for row in rows])
    trees = _trees(server.renderer, conversations, warm_start.tools, settings.batch_size)
    taken = imitated.get(adapter, 0)
    if taken == len(trees):
        return
    options = _learner_settings(settings, run.learner_settings, len(trees))
    learner = await run.policy.run_async(lambda: run.policy.learner(options, adapter))
    await checkpointing.begin_warm_up(learner, taken)
    run.logger.phase(run.named(adapter, "SFT", " "), len(trees))
    run.logger.advance(taken)

    def learn(tree: TokenTree) -> dict[str, float]:
        """Take a step and count it: an interruption may not come in between."""
        metrics = _take_step(learner, tree)
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
    checkpointing.end_warm_up()


def _trees(
    renderer: ChatRenderer, conversations: Sequence[Messages], tools: Sequence[dict[str, Any]], batch_size: int
) -> list[TokenTree]:
    """Return one tree for each optimizer step, with `batch_size` conversations in it."""
    trees = []
    for start in range(0, len(conversations), batch_size):
        tree = TokenTree()
        for index, messages in enumerate(conversations[start : start + batch_size]):
            for record in renderer.conversation_to_records(messages, tools):
                tree.insert(record, index)
        trees.append(tree)
    return trees


def _learner_settings(settings: WarmStartSettings, learner: LearnerSettings, steps: int) -> LearnerSettings:
    """Return the settings of the learner with the rate and the schedule of the warm-up, over its own steps."""
    changes = {
        "learning_rate": settings.learning_rate,
        "warmup_steps": min(settings.warmup_steps, max(0, steps - 1)),
        "schedule": settings.schedule,
        "total_steps": steps,
    }
    return LearnerSettings(**(learner.model_dump() | changes))


def _take_step(learner: Learner, tree: TokenTree) -> dict[str, float]:
    packed = pack([tree])
    weights_S = torch.full((packed.term_count,), 1 / packed.term_count)
    metrics = learner.forward_backward(packed, negative_log_likelihood, TermStreams(weights_S))
    return metrics | learner.optim_step()


def negative_log_likelihood(inputs: LossInputs) -> LossOutputs:
    """Return the mean of -log p over the tokens of the assistant."""
    weights_S = inputs.streams.weights_S
    return LossOutputs(-(weights_S * inputs.logprobs_S).sum(), {"entropy": (weights_S * inputs.entropy_S).sum()})
