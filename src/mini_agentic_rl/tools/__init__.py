"""Tools that agents call: the calculator, also over MCP (`tools.mcp_calculator`), and tools with one text argument."""

from __future__ import annotations

from functools import partial
from typing import Final

from ..compat import find_elsewhere
from .calculator import CALCULATOR_TOOL, calculate
from .text_tools import TextTools, answer_calls, text_tool, use_text_tool

CALCULATOR: Final[TextTools] = {CALCULATOR_TOOL["function"]["name"]: ("expression", calculate)}
"""The calculator, for `use_text_tool`."""

__all__ = [
    "CALCULATOR",
    "CALCULATOR_TOOL",
    "RLTrainingTool",
    "TextTools",
    "answer_calls",
    "calculate",
    "text_tool",
    "use_text_tool",
]

__getattr__ = partial(find_elsewhere, __name__)
