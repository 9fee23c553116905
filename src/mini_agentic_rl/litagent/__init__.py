"""Agents: a class with a `rollout` method, or a decorated function."""

from .agent import ROLLOUT_ARGUMENTS, LitAgent, RolloutResult
from .arguments import arguments_for, names_argument
from .decorator import FunctionalLitAgent, llm_rollout, prompt_rollout, rollout
from .results import RolloutOutcome, read_hook_result, read_result

__all__ = [
    "ROLLOUT_ARGUMENTS",
    "FunctionalLitAgent",
    "LitAgent",
    "RolloutOutcome",
    "RolloutResult",
    "arguments_for",
    "llm_rollout",
    "names_argument",
    "prompt_rollout",
    "read_hook_result",
    "read_result",
    "rollout",
]
