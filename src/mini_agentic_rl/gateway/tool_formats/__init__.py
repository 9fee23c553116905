"""Ways in which models write tool calls, and the scanner that they share.

A format is used in three places: the renderer asks it how calls and results stand in prompts (`render/template.py`,
which also finds out what format a model's chat template writes), the reader of an answer takes its `scanner`
(`render/decoding.py`), and a promised call is made of its `shape` (`constraints/rules.py`).

A new format is a `ToolFormat` (`base.py`) a place in `FORMATS`, and its name in `ToolFormatName`.
`HermesFormat` is a short one; `CallScanner` and the blocks of `base.py` read most of what models write.
"""

from typing import Literal

from .base import CallShape, Scanner, TextOrCall, Tool, ToolCall, ToolFormat, parse_arguments, split_tool_calls
from .json_formats import HermesFormat, JsonFormat, Llama3Format, MistralFormat
from .pythonic import PythonicFormat
from .xml import XmlFormat

__all__ = [
    "COMPACT",
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
    "XmlFormat",
    "parse_arguments",
    "split_tool_calls",
]

ToolFormatName = Literal["auto", "compact", "hermes", "llama3", "mistral", "json", "pythonic", "xml"]
"""A format, or how it is chosen: `auto` and `compact` take what the chat template writes, and where it writes nothing
that can be read back the first of `FORMATS`, or the one that takes the fewest tokens."""
COMPACT: ToolFormatName = "pythonic"
"""The format with the fewest tokens: a call takes 13 where Hermes takes 34."""

FORMATS: tuple[ToolFormat, ...] = (
    HermesFormat(),
    MistralFormat(),
    MistralFormat(named=True),
    Llama3Format(),
    PythonicFormat(),
    PythonicFormat(marked=True),
    JsonFormat(),
    JsonFormat(marked=True),
    XmlFormat(),
)
"""Every format. Where a chat template writes none of them, the first with the name that was chosen is taken."""
