"""Wire formats that agents speak, as translations to and from OpenAI's chat completions.

A dialect turns its request into the body of a chat request, which `parse_chat_request` validates, and turns the answer,
whole or chunk by chunk, into its own form. `anthropic.py` is a complete example: it validates and rewrites the request,
and an exchange builds the message from what `ChatReader` reads.

A new dialect is a file with a `Dialect` (`base.py`) and an entry in `shared_dialects`. Both gateways then serve it, at
its path and below each rollout's URL, with the same keys, limits and records.
"""

from .anthropic import AnthropicDialect as AnthropicDialect
from .base import Caller as Caller
from .base import CallScope as CallScope
from .base import Dialect as Dialect
from .base import Exchange as Exchange
from .base import Lookup as Lookup
from .chat import ChatDialect as ChatDialect
from .chat import ChatRequest as ChatRequest
from .chat import FunctionDefinition as FunctionDefinition
from .chat import StreamOptions as StreamOptions
from .chat import parse_chat_request as parse_chat_request
from .completions import CompletionsDialect as CompletionsDialect
from .parameters import AnswerForm as AnswerForm
from .reader import ChatReader as ChatReader
from .responses import ResponsesDialect as ResponsesDialect


def shared_dialects() -> list[Dialect]:
    """Return new dialects for one server. They may remember answers.

    `CompletionsDialect` is not included: its prompts are not chats, and only a gateway that samples can serve it.
    """
    return [ChatDialect(), ResponsesDialect(), AnthropicDialect()]
