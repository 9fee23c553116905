"""The reward service: a reward model behind HTTP, which scores what many clients send in batches made on the way.

`load_scorer` loads a `RewardModel` from what a person writes, and `ScoreServer` serves it. Both need torch, and are
loaded when they are asked for; the settings are not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .settings import BatchSettings, ScoreServerSettings, TextLimits

if TYPE_CHECKING:
    from .reward_model import RewardModel, load_scorer
    from .server import ScoreServer

__all__ = [
    "BatchSettings",
    "RewardModel",
    "ScoreServer",
    "ScoreServerSettings",
    "TextLimits",
    "load_scorer",
]

_LATER = {"RewardModel": "reward_model", "ScoreServer": "server", "load_scorer": "reward_model"}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f".{_LATER[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
