"""Algorithms. Those that need torch are loaded when they are asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .base import Algorithm, AlgorithmContext
from .baseline import Baseline, FastAlgorithm
from .decorator import FunctionalAlgorithm, algo

if TYPE_CHECKING:
    from .apo import APO, APOSettings
    from .grpo import GRPOSettings, MiniGRPO
    from .ppo import MiniPPO, PPOSettings
    from .verl import VERL

__all__ = [
    "APO",
    "VERL",
    "APOSettings",
    "Algorithm",
    "AlgorithmContext",
    "Baseline",
    "FastAlgorithm",
    "FunctionalAlgorithm",
    "GRPOSettings",
    "MiniGRPO",
    "MiniPPO",
    "PPOSettings",
    "algo",
]

_LATER = {
    "APO": "apo",
    "APOSettings": "apo",
    "GRPOSettings": "grpo",
    "MiniGRPO": "grpo",
    "MiniPPO": "ppo",
    "PPOSettings": "ppo",
    "VERL": "verl",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f".{_LATER[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
