"""Wire formats that agents speak, each over the one form that is served inside, OpenAI's chat completions.

A dialect turns its request into the body of a chat request, which `parse_chat_request` checks, and turns the answer,
whole or chunk by chunk, into its own shape. `anthropic.py` shows all of one: its request is checked and rewritten, and
an exchange makes the message from what `ChatReader` reads in chat completions.

A new dialect is a file with a `Dialect` (`base.py`), and a place in `shared_dialects`. Both gateways then serve it at
its path and below each rollout's URL, under the same keys, limits and records as every other. The tests of all dialects
(`tests/gateway/dialects/test_any_body.py`, `tests/gateway/test_fuzz.py`) cover it as well.
"""

from .anthropic import AnthropicDialect
from .base import Caller, CallScope, Counting, Dialect, Exchange, Lookup, assistant_message
from .chat import ChatDialect, ChatRequest, FunctionDefinition, StreamOptions, parse_chat_request
from .completions import CompletionsDialect
from .parameters import AnswerForm
from .responses import ResponsesDialect

__all__ = [
    "AnswerForm",
    "AnthropicDialect",
    "CallScope",
    "Caller",
    "ChatDialect",
    "ChatRequest",
    "CompletionsDialect",
    "Counting",
    "Dialect",
    "Exchange",
    "FunctionDefinition",
    "Lookup",
    "ResponsesDialect",
    "StreamOptions",
    "assistant_message",
    "parse_chat_request",
    "shared_dialects",
]


def shared_dialects() -> list[Dialect]:
    """Return new dialects for one server, which may remember what they answered. Every gateway serves them.

    `CompletionsDialect`, whose prompts are no chat, is not among them: only a gateway that samples can serve it.
    """
    return [ChatDialect(), ResponsesDialect(), AnthropicDialect()]
