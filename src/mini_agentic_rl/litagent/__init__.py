"""Agents: a class with a `rollout` method, or a decorated function."""

from .agent import FunctionalLitAgent, LitAgent, RolloutResult, llm_rollout, prompt_rollout, rollout, rollout_call
from .arguments import RolloutOutcome, arguments_for, read_hook_result, read_result

__all__ = [
    "FunctionalLitAgent",
    "LitAgent",
    "RolloutOutcome",
    "RolloutResult",
    "arguments_for",
    "llm_rollout",
    "prompt_rollout",
    "read_hook_result",
    "read_result",
    "rollout",
    "rollout_call",
]
