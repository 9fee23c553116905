"""Training on written data, by TRL: supervised fine-tuning, preferences, and reward models.

Each method is a settings class and one function: `train_sft(SFTSettings(model="embedded", dataset="gsm8k"))`. The
functions need torch and TRL (the `trl` extra), which are loaded when a function is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .settings import DPOSettings, KTOSettings, ORPOSettings, PostTrainingSettings, RewardModelSettings, SFTSettings

if TYPE_CHECKING:
    from .dpo import train_dpo
    from .kto import train_kto
    from .models import load_reward_model
    from .orpo import train_orpo
    from .reward_model import train_reward_model
    from .sft import train_sft

__all__ = [
    "DPOSettings",
    "KTOSettings",
    "ORPOSettings",
    "PostTrainingSettings",
    "RewardModelSettings",
    "SFTSettings",
    "load_reward_model",
    "train_dpo",
    "train_kto",
    "train_orpo",
    "train_reward_model",
    "train_sft",
]

_LATER = {
    "load_reward_model": "models",
    "train_dpo": "dpo",
    "train_kto": "kto",
    "train_orpo": "orpo",
    "train_reward_model": "reward_model",
    "train_sft": "sft",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f".{_LATER[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
