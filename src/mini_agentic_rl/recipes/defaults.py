"""Defaults of a training that differ from recipe to recipe: how much is imitated, and how fast is learnt.

They are numbers that were found by trying, each table with the reason; the agent is not loaded for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..datasets.episodes import EPISODES, REASONING_GYM, is_episodes, tokens_of_episodes

_SHORT_IMITATION: Final[Mapping[str, Any]] = {
    "loop.total_steps": 12,
    "loop.tasks_per_step": 12,
    "loop.tool_format": "auto",
    "lora.r": 8,
    "learner.warmup_steps": 0,
    "engine.cache_mib": 768,
    "learner.learning_rate": 8e-4,
    "warm_start.examples": 32,
    "warm_start.until": "ready",
    "warm_start.learning_rate": 1e-3,
    "warm_start.batch_size": 4,
    "warm_start.schedule": "constant",
}
"""The usual numbers: imitation teaches the form, rewards the rest."""

_ARITHMETIC: Final[Mapping[str, Any]] = {
    "loop.total_steps": 6,
    "loop.tasks_per_step": 12,
    "loop.tool_format": "compact",
    "lora.r": 16,
    "learner.warmup_steps": 0,
    "engine.cache_mib": 768,
    "learner.learning_rate": 2e-4,
    "learner.max_batch_tokens": 650,
    "warm_start.examples": 2048,
    "warm_start.until": "examples",
    "warm_start.learning_rate": 2e-3,
    "warm_start.batch_size": 8,
    "warm_start.schedule": "linear",
}
"""The math agent on generated arithmetic. To read stories that it has never seen, the model imitates many
different ones first, where a few would teach the form of a call only; from there it is reinforced at a low rate that
falls (a higher one, which suits a model that has just learnt the form, destroys what it has read), and shortly: of
the two, a minute of imitation adds more here. Calls are written in few tokens, so that a minute holds a third more
examples."""

_SQL: Final[Mapping[str, Any]] = {
    **_SHORT_IMITATION,
    "loop.tool_format": "compact",
    "warm_start.examples": 192,
    "learner.max_batch_tokens": 1200,
}
"""The SQL agent needs more examples until it writes queries at all, and has longer rollouts: those of a question with
their prompt are about 1,000 tokens."""

_EPISODES: Final[Mapping[str, Any]] = {
    **_SHORT_IMITATION,
    "loop.tool_format": "compact",
    "learner.learning_rate": 4e-4,
    "warm_start.examples": 96,
    "warm_start.learning_rate": 2e-3,
    "warm_start.batch_size": 8,
}
"""Episodes of several calls need more examples until one of them succeeds, and there is nothing to reinforce before
that. Twice the rate of reinforcement has destroyed such agents."""

_UNITS: Final[Mapping[str, Any]] = {
    **_SHORT_IMITATION,
    "loop.total_steps": 20,
    "loop.tasks_per_step": 8,
    "loop.tool_format": "compact",
    "learner.learning_rate": 5e-4,
    "learner.warmup_steps": 2,
    "engine.cache_mib": 512,
    "warm_start.examples": 96,
    "warm_start.learning_rate": 2e-3,
    "warm_start.batch_size": 4,
}
"""The main job: a short warm-up that ends when the policy is ready for rewards, and then rewards alone. Steps of 4
examples learn the form of the calls from half of the examples that steps of 8 need. The policy is tried after 48, 64
and 96 examples: rewards teach a kind of task only if it is solved now and then, and seed 4 gains 46 points from rewards
after 48 examples, 8.5 after 64 (`dev/LOG.md`). The two kinds take turns, four
tasks of each in a step."""

_EXPERT_PREFIX: Final[Mapping[str, Any]] = {"loop.expert_prefix": True}
"""Second tries at failed tasks, begun as a demonstration: where one of two kinds is hardly solved, rewards for the
other take it to nothing (seed 3 of the main job; `dev/LOG.md`)."""

_EXAMPLES_BESIDE: Final[Mapping[str, Any]] = {"loop.sft_coef": 0.1, "loop.sft_per_step": 8}
"""A few examples in each step of reinforcement learning, for agents that few examples were shown to: where most
rollouts fail, what is learnt from them alone unlearns when to end a turn (`docs/losses.md`)."""


def training_defaults(name: str, dataset: str, *, mixes: bool = False, whole_steps: bool = False) -> Mapping[str, Any]:
    """Return what a training of an agent on these tasks takes where nothing is given: a value for the path of each
    setting, as `lora.r`.

    Args:
        name: of the agent.
        dataset: of its tasks.
        mixes: the training can, and may, imitate in the steps of its reinforcement learning.
        whole_steps: sampling waits for learning, so that failed tasks of a step can be tried again.
    """
    if name == "sql":
        return _SQL
    if name == "units" and dataset.partition(":")[0] == "units":
        return {**_UNITS, **_EXPERT_PREFIX} if mixes and whole_steps else _UNITS
    if name == "math" and dataset.partition(":")[0] == "arithmetic":
        return _ARITHMETIC
    if is_episodes(dataset) or name in EPISODES:
        calls_tools = REASONING_GYM not in (name, dataset.partition(":")[0])
        return {**_EPISODES, **_EXAMPLES_BESIDE} if mixes and calls_tools else _EPISODES
    return _SHORT_IMITATION


def tokens_of_call(name: str, dataset: str) -> int:
    """Return the tokens that a call of an agent needs: a query, an expression, a guess, or a solution in words."""
    if name == "sql":
        return 96
    episodes = dataset if is_episodes(dataset) else name
    if is_episodes(episodes):
        return tokens_of_episodes(episodes)
    return 48 if dataset == "arithmetic" else 128
