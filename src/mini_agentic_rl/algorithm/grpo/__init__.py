"""Mini-GRPO: advantage, loss, batch, update, and the loop around them. The settings need no torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .settings import GRPOSettings

if TYPE_CHECKING:
    from .advantage import Advantage, group_centred, group_normalized
    from .loss import GRPOLoss, term_weights
    from .mini_grpo import MiniGRPO

__all__ = ["Advantage", "GRPOLoss", "GRPOSettings", "MiniGRPO", "group_centred", "group_normalized", "term_weights"]

_LATER = {
    "Advantage": "advantage",
    "GRPOLoss": "loss",
    "MiniGRPO": "mini_grpo",
    "group_centred": "advantage",
    "group_normalized": "advantage",
    "term_weights": "loss",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f".{_LATER[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
