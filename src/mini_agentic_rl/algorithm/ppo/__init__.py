"""Mini-PPO: a critic, advantages over the tokens of a rollout, and the update made of them.

The settings need no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .settings import PPOSettings

if TYPE_CHECKING:
    from .gae import explained_variance, generalized_advantages, whiten
    from .loss import PPOLoss, ValueLoss, clipped_value_error
    from .mini_ppo import MiniPPO

__all__ = [
    "MiniPPO",
    "PPOLoss",
    "PPOSettings",
    "ValueLoss",
    "clipped_value_error",
    "explained_variance",
    "generalized_advantages",
    "whiten",
]

_LATER = {
    "MiniPPO": "mini_ppo",
    "PPOLoss": "loss",
    "ValueLoss": "loss",
    "clipped_value_error": "loss",
    "explained_variance": "gae",
    "generalized_advantages": "gae",
    "whiten": "gae",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f".{_LATER[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
