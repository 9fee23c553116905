"""A short supervised warm-up: imitate written conversations, in the tokens that the agent will see.

The conversations are rendered by the gateway's own renderer and grown into the same trees that reinforcement learning
trains, so a system prompt that all examples share is computed once per batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from ...gateway import ChatRenderer
from ...policy import Learner, LearnerSettings, LossInputs, LossOutputs, TermStreams
from ...tokens import TokenTree, pack
from ..settings import WarmStartSettings

Messages = Sequence[dict[str, Any]]

_BESIDES: Final = 16


@dataclass(frozen=True)
class WarmStart:
    """Source of the examples: `demonstration` turns a task into OpenAI messages, `tools` are what the agent sends."""

    demonstration: Callable[[Mapping[str, Any]], Messages]
    tools: Sequence[dict[str, Any]] = ()
    settings: WarmStartSettings = field(default_factory=WarmStartSettings)
    besides: Sequence[Messages] = ()
    """Conversations that are no task: one is put before every `_BESIDES`-th example."""

    def conversations(self, tasks: Sequence[Mapping[str, Any]]) -> list[Messages]:
        """Return the demonstrations of tasks with what is mixed in between."""
        found: list[Messages] = []
        for number, task in enumerate(tasks):
            if self.besides and number % _BESIDES == 0:
                found.append(self.besides[number // _BESIDES % len(self.besides)])
            found.append(self.demonstration(task))
        return found


def negative_log_likelihood(inputs: LossInputs) -> LossOutputs:
    """Return the mean of -log p over the tokens of the assistant."""
    weights_S = inputs.streams.weights_S
    return LossOutputs(-(weights_S * inputs.logprobs_S).sum(), {"entropy": (weights_S * inputs.entropy_S).sum()})


def trees_of(
    renderer: ChatRenderer, conversations: Sequence[Messages], tools: Sequence[dict[str, Any]], batch_size: int
) -> list[TokenTree]:
    """Return a tree of each `batch_size` conversations, in the tokens that `renderer` gives an agent."""
    trees = []
    for start in range(0, len(conversations), batch_size):
        tree = TokenTree()
        for index, messages in enumerate(conversations[start : start + batch_size]):
            for record in renderer.conversation_to_records(messages, tools):
                tree.insert(record, index)
        trees.append(tree)
    return trees


def warm_up_settings(learner: LearnerSettings, warm_up: WarmStartSettings, steps: int) -> LearnerSettings:
    """Return the settings of the optimizer that takes `steps` of a warm-up: `learner` with a rate of its own."""
    changes = {
        "learning_rate": warm_up.learning_rate,
        "warmup_steps": min(warm_up.warmup_steps, max(0, steps - 1)),
        "schedule": warm_up.schedule,
        "total_steps": steps,
    }
    return LearnerSettings(**(learner.model_dump() | changes))


def imitate_tree(learner: Learner, tree: TokenTree) -> dict[str, float]:
    """Take one optimizer step towards the conversations of a tree, and return its metrics. On the torch thread."""
    packed = pack([tree])
    weights_S = torch.full((packed.term_count,), 1 / packed.term_count)
    metrics = learner.forward_backward(packed, negative_log_likelihood, TermStreams(weights_S))
    return metrics | learner.optim_step()
