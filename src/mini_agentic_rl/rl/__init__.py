"""Training by the names that callers of HelloAgents use: `from mini_agentic_rl.rl import TrainingConfig, …`.

A thin layer: supervised training is that of `post_training`, reinforcement learning that of `algorithm`, rewards and
data are those of `rewards` and `datasets`. Names are loaded when they are first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import TrainingConfig
    from .datasets import (
        STAND_IN,
        GSM8KDataset,
        create_math_dataset,
        create_rl_dataset,
        create_sft_dataset,
        format_math_dataset,
        load_dataset,
        local_copy,
        preview_dataset,
        usual_dataset,
    )
    from .evaluation import evaluate_model
    from .installation import TRL_AVAILABLE, check_trl_installation, get_device_info, get_installation_guide
    from .reinforcement import reinforce
    from .rewards import (
        REWARD_TYPES,
        MathRewardFunction,
        create_accuracy_reward,
        create_length_penalty_reward,
        create_reward_function,
        create_step_reward,
        evaluate_rewards,
    )
    from .simple_agent import LLMConfig, SimpleAgent
    from .supervised import FORMATS, SUPERVISED_SETTINGS, supervise
    from .trainers import GRPOTrainerWrapper, PPOTrainerWrapper, SFTTrainerWrapper, train_with_grpo, train_with_sft

_HOME = {
    "reinforce": "reinforcement",
    "supervise": "supervised",
    "SUPERVISED_SETTINGS": "supervised",
    "FORMATS": "supervised",
    "REWARD_TYPES": "rewards",
    "local_copy": "datasets",
    "STAND_IN": "datasets",
    "TrainingConfig": "config",
    "GSM8KDataset": "datasets",
    "create_math_dataset": "datasets",
    "create_rl_dataset": "datasets",
    "create_sft_dataset": "datasets",
    "format_math_dataset": "datasets",
    "load_dataset": "datasets",
    "preview_dataset": "datasets",
    "usual_dataset": "datasets",
    "TRL_AVAILABLE": "installation",
    "check_trl_installation": "installation",
    "get_device_info": "installation",
    "get_installation_guide": "installation",
    "MathRewardFunction": "rewards",
    "create_accuracy_reward": "rewards",
    "create_length_penalty_reward": "rewards",
    "create_reward_function": "rewards",
    "create_step_reward": "rewards",
    "evaluate_rewards": "rewards",
    "GRPOTrainerWrapper": "trainers",
    "PPOTrainerWrapper": "trainers",
    "SFTTrainerWrapper": "trainers",
    "LLMConfig": "simple_agent",
    "SimpleAgent": "simple_agent",
    "evaluate_model": "evaluation",
    "train_with_grpo": "trainers",
    "train_with_sft": "trainers",
}

__all__ = [
    "FORMATS",
    "REWARD_TYPES",
    "STAND_IN",
    "SUPERVISED_SETTINGS",
    "TRL_AVAILABLE",
    "GRPOTrainerWrapper",
    "GSM8KDataset",
    "LLMConfig",
    "MathRewardFunction",
    "PPOTrainerWrapper",
    "SFTTrainerWrapper",
    "SimpleAgent",
    "TrainingConfig",
    "check_trl_installation",
    "create_accuracy_reward",
    "create_length_penalty_reward",
    "create_math_dataset",
    "create_reward_function",
    "create_rl_dataset",
    "create_sft_dataset",
    "create_step_reward",
    "evaluate_model",
    "evaluate_rewards",
    "format_math_dataset",
    "get_device_info",
    "get_installation_guide",
    "load_dataset",
    "local_copy",
    "preview_dataset",
    "reinforce",
    "supervise",
    "train_with_grpo",
    "train_with_sft",
    "usual_dataset",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
