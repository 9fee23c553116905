"""Algorithms. Those that need torch are loaded when they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .base import Algorithm, AlgorithmContext
from .baseline import Baseline, FastAlgorithm
from .decorator import FunctionalAlgorithm, algo

if TYPE_CHECKING:
    from .grpo import GRPOSettings, MiniGRPO

__all__ = [
    "Algorithm",
    "AlgorithmContext",
    "Baseline",
    "FastAlgorithm",
    "FunctionalAlgorithm",
    "GRPOSettings",
    "MiniGRPO",
    "algo",
]


def __getattr__(name: str) -> Any:
    if name in ("MiniGRPO", "GRPOSettings"):
        from . import grpo

        return getattr(grpo, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
