"""The math agent: word problems, one calculator, a reward of 1 for the right answer.

`MathAgent` and `MathRewardHook` are what a trainer runs; `opening`, `use_tool` and `demonstration` its conversation;
`calculator` gives that conversation as training examples. `math_recipe` is all of it for a job.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .conversation import SYSTEM_PROMPT, TOOLS, calculator, demonstration, opening, use_tool

if TYPE_CHECKING:
    from .agent import MathAgent as MathAgent
    from .agent import MathRewardHook as MathRewardHook
    from .agent import final_text as final_text
    from .agent import math_recipe as math_recipe

_OF_AGENT = ("MathAgent", "MathRewardHook", "final_text", "math_recipe")
"""Loaded when they are asked for: they need the OpenAI client."""

__all__ = ["SYSTEM_PROMPT", "TOOLS", "calculator", "demonstration", "opening", "use_tool", *_OF_AGENT]


def __getattr__(name: str) -> Any:
    if name in _OF_AGENT:
        return getattr(import_module(".agent", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
