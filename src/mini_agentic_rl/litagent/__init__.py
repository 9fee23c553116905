"""Agents: a class with a `rollout` method, or a decorated function."""

from .agent import LitAgent, RolloutResult
from .arguments import arguments_for, names_argument
from .decorator import FunctionalLitAgent, llm_rollout, prompt_rollout, rollout

__all__ = [
    "FunctionalLitAgent",
    "LitAgent",
    "RolloutResult",
    "arguments_for",
    "llm_rollout",
    "names_argument",
    "prompt_rollout",
    "rollout",
]
