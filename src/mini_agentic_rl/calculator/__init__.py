"""A calculator for models: `calculate` evaluates an expression, `CALCULATOR_TOOL` offers it to them.

Agents, data sets and rewards share it, so it stands below all of them.
"""

from .expression import CALCULATOR_TOOL, calculate

__all__ = ["CALCULATOR_TOOL", "calculate"]
