"""Wire formats that agents speak, each over the one form that is served inside, OpenAI's chat completions.

A dialect turns its request into the body of a chat request, which `parse_chat_request` checks, and turns the answer,
whole or chunk by chunk, into its own shape. `anthropic/` shows all of one: its request is checked and rewritten, its
answer grows from what `chat_reader.py` finds in chat completions, and an `Exchange` joins the two.

A new dialect is a `Dialect` (`base.py`), and a place in `shared_dialects`. Both gateways then serve it at its path and
below each rollout's URL, under the same keys, limits and records as every other; the tests of all dialects
(`tests/gateway/dialects/test_any_body.py`, `tests/gateway/test_fuzz.py`) take it up as well.
"""

from .anthropic import AnthropicDialect
from .base import CallScope, Counting, Dialect, Exchange, Lookup, assistant_message
from .chat import ChatDialect, ChatRequest, FunctionDefinition, StreamOptions, parse_chat_request
from .completions import CompletionsDialect
from .parameters import AnswerForm
from .responses import ResponsesDialect

__all__ = [
    "AnswerForm",
    "AnthropicDialect",
    "CallScope",
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
    """Return the dialects that every gateway serves, whether it samples or asks upstreams. `CompletionsDialect`, whose
    prompts are no chat, is not among them: only a gateway that samples has it.

    Each call makes them anew: what one remembers between requests belongs to one server.
    """
    return [ChatDialect(), ResponsesDialect(), AnthropicDialect()]
