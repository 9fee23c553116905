"""Ways in which models write tool calls: one file for each format, and the scanner that they share."""

from typing import Literal

from .base import CallShape, Scanner, TextOrCall, Tool, ToolCall, ToolFormat
from .hermes import HermesFormat
from .json_calls import parse_arguments
from .llama3 import Llama3Format
from .mistral import MistralFormat
from .plain_json import JsonFormat
from .pythonic import PythonicFormat
from .scanner import split_tool_calls

__all__ = [
    "FORMATS",
    "CallShape",
    "HermesFormat",
    "JsonFormat",
    "Llama3Format",
    "MistralFormat",
    "PythonicFormat",
    "Scanner",
    "TextOrCall",
    "Tool",
    "ToolCall",
    "ToolFormat",
    "ToolFormatName",
    "parse_arguments",
    "split_tool_calls",
]

ToolFormatName = Literal["auto", "hermes", "llama3", "mistral", "json", "pythonic"]

FORMATS: tuple[ToolFormat, ...] = (
    HermesFormat(),
    MistralFormat(),
    MistralFormat(named=True),
    Llama3Format(),
    PythonicFormat(),
    JsonFormat(),
    JsonFormat(marked=True),
)
"""Every format; where a name occurs twice its first form is the usual one."""
