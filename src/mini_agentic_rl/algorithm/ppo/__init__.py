"""Mini-PPO: a critic, advantages over the tokens of a rollout, and the update made of them.

Names are loaded when they are asked for: settings and advantages need no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .gae import explained_variance, generalized_advantages, whiten
from .settings import PPOSettings

if TYPE_CHECKING:
    from ..losses.value import PPOLoss, ValueLoss, clipped_value_error
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


def __getattr__(name: str) -> Any:
    if name == "MiniPPO":
        return import_module(".mini_ppo", __name__).MiniPPO
    if name in ("PPOLoss", "ValueLoss", "clipped_value_error"):
        return getattr(import_module("..losses.value", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
