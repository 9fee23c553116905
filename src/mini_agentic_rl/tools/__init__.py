"""Tools that agents call: the calculator, also over MCP, and read-only SQL (`tools.sql`).

`RLTrainingTool`, which users of the guides import from here, stands in a room of its own above.
"""

from __future__ import annotations

from functools import partial

from ..calculator import CALCULATOR_TOOL, calculate
from ..compat import find_elsewhere

__all__ = ["CALCULATOR_TOOL", "RLTrainingTool", "calculate"]

__getattr__ = partial(find_elsewhere, __name__)
