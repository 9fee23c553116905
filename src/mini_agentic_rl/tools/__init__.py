"""Tools that agents call. `RLTrainingTool` stands far above this room, and is loaded when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .calculator import CALCULATOR_TOOL, calculate

__all__ = ["CALCULATOR_TOOL", "RLTrainingTool", "calculate"]


def __getattr__(name: str) -> Any:
    if name == "RLTrainingTool":
        return import_module("mini_agentic_rl.rl_training_tool").RLTrainingTool
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
