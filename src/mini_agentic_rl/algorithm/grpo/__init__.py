"""Mini-GRPO: advantages within a group of rollouts, and the update made of them.

Names are loaded when they are asked for: settings and advantages need no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..losses import term_weights
from .advantage import Advantage, group_centred, group_normalized
from .settings import GRPOSettings

if TYPE_CHECKING:
    from ..losses.policy_gradient import PolicyGradientLoss as GRPOLoss
    from .mini_grpo import Backend, MiniGRPO

__all__ = [
    "Advantage",
    "Backend",
    "GRPOLoss",
    "GRPOSettings",
    "MiniGRPO",
    "group_centred",
    "group_normalized",
    "term_weights",
]


def __getattr__(name: str) -> Any:
    if name == "GRPOLoss":  # the name that it had
        return import_module("..losses.policy_gradient", __name__).PolicyGradientLoss
    if name in ("Backend", "MiniGRPO"):
        return getattr(import_module(".mini_grpo", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
