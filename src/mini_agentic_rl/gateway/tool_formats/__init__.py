"""The ways in which models write tool calls.

A format is used in three places: the renderer writes calls and results with it (`render/template.py` finds out which
one a chat template uses), the reader of an answer takes its `scanner` (`render/decoding.py`), and the grammar of a
promised call is made of its `shape` (`constraints/rules.py`).

A format with JSON arguments is a row of the table in `json_formats.py`. Another one is a `ToolFormat` (`base.py`) with
a place in `FORMATS`. A new name also goes into `ToolFormatName`.
"""

from typing import Final, Literal

from .base import CallScanner as CallScanner
from .base import TextOrCall as TextOrCall
from .base import Tool as Tool
from .base import ToolCall as ToolCall
from .base import ToolFormat as ToolFormat
from .base import parse_arguments as parse_arguments
from .base import partial_end as partial_end
from .base import split_tool_calls as split_tool_calls
from .json_formats import DEEPSEEK as DEEPSEEK
from .json_formats import DEEPSEEK_FENCED as DEEPSEEK_FENCED
from .json_formats import HERMES as HERMES
from .json_formats import JSON as JSON
from .json_formats import JSON_MARKED as JSON_MARKED
from .json_formats import KIMI as KIMI
from .json_formats import LLAMA3 as LLAMA3
from .json_formats import MISTRAL as MISTRAL
from .json_formats import MISTRAL_NAMED as MISTRAL_NAMED
from .pythonic import PythonicFormat as PythonicFormat
from .xml import XmlFormat as XmlFormat

ToolFormatName = Literal[
    "auto", "compact", "hermes", "llama3", "mistral", "json", "pythonic", "xml", "kimi", "deepseek"
]
"""A format by its name. `auto` and `compact` take the format of the chat template; where it has none that can be read
back, `auto` takes the first of `FORMATS` and `compact` the one with the fewest tokens."""
COMPACT: Final[ToolFormatName] = "pythonic"
"""The format with the fewest tokens: 13 for a call, where Hermes takes 34."""

FORMATS: Final[tuple[ToolFormat, ...]] = (
    HERMES,
    MISTRAL,
    MISTRAL_NAMED,
    LLAMA3,
    PythonicFormat(),
    PythonicFormat(marked=True),
    JSON,
    JSON_MARKED,
    XmlFormat(),
    KIMI,
    DEEPSEEK,
    DEEPSEEK_FENCED,
)
"""All formats. The first with the selected name is taken where the chat template writes none of them."""
