"""The supervised warm-up of a run: each adapter imitates written conversations, in the tokens that the agent will see.

The conversations are rendered by the gateway's own renderer and grown into the same trees that reinforcement learning
trains, so a system prompt that all examples share is computed once per batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ...gateway import ChatRenderer
from ...metrics import SFT
from ...policy import Learner, LearnerSettings, LossInputs, LossOutputs, Policy, TermStreams
from ...tokens import TokenTree, pack
from ...types import Dataset
from ..seeds import tasks_of_step
from ..settings import WarmStartSettings
from .training_run import TrainingRun
from .warm_start import Messages, WarmStart


async def warm_up(run: TrainingRun) -> bool:
    """Imitate what the algorithm was given for that, adapter by adapter; return False where there is nothing."""
    warm_starts = {
        adapter: start for adapter, start in run.algorithm.warm_starts.items() if start.settings.examples > 0
    }
    if not warm_starts or run.train_dataset is None:
        return False
    started = time.perf_counter()
    for adapter, warm_start in warm_starts.items():
        await _warm_up_adapter(run, adapter, warm_start, run.train_dataset)
    run.progress.spend("sft", time.perf_counter() - started)
    return True


async def _warm_up_adapter(run: TrainingRun, adapter: str, warm_start: WarmStart, dataset: Dataset[Any]) -> None:
    server, settings = run.served.server, warm_start.settings
    if server is None:
        raise RuntimeError("the policy is not served")
    size = len(dataset)
    # From the end of the first epoch, so that reinforcement learning begins with tasks not imitated.
    rows = tasks_of_step(run.settings.seed, size, 0, size)[-settings.examples :]
    conversations = warm_start.conversations([dataset[row] for row in rows])
    trees = _trees(server.renderer, conversations, warm_start.tools, settings.batch_size)
    run.logger.phase(run.named(adapter, "SFT", " "), len(trees))

    def on_step(step: int, metrics: Mapping[str, float]) -> None:
        run.logger.advance()
        run.log({run.named(adapter, f"{SFT}{name}"): value for name, value in metrics.items()}, step=step + 1)

    await _imitate(run.policy, adapter, trees, _learner_settings(settings, run.learner_settings, len(trees)), on_step)


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


async def _imitate(
    policy: Policy,
    adapter: str,
    trees: Sequence[TokenTree],
    settings: LearnerSettings,
    on_step: Callable[[int, Mapping[str, float]], None],
) -> None:
    """Take an optimizer step of `adapter` on each tree; `on_step` hears each step's number and metrics."""
    learner = await policy.run_async(lambda: policy.learner(settings, adapter))
    for step, tree in enumerate(trees):
        on_step(step, await policy.learn_async(partial(_take_step, learner, tree)))


def _take_step(learner: Learner, tree: TokenTree) -> dict[str, float]:
    packed = pack([tree])
    weights_S = torch.full((packed.term_count,), 1 / packed.term_count)
    metrics = learner.forward_backward(packed, negative_log_likelihood, TermStreams(weights_S))
    return metrics | learner.optim_step()


def negative_log_likelihood(inputs: LossInputs) -> LossOutputs:
    """Return the mean of -log p over the tokens of the assistant."""
    weights_S = inputs.streams.weights_S
    return LossOutputs(-(weights_S * inputs.logprobs_S).sum(), {"entropy": (weights_S * inputs.entropy_S).sum()})
