"""Tools that the shipped agents call."""

from .calculator import CALCULATOR_TOOL, calculate

__all__ = ["CALCULATOR_TOOL", "calculate"]
