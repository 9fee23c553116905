"""`chat`: talk to a model through the same endpoint, with the same tools, as the trained agent."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pydantic import Field
from rich.console import Console

from ..datasets import MATH, ChatTools, find_family
from ..errors import UserError
from ..gateway import ServerSettings
from ..policy import AdaptedModelSettings
from ..processes import terminated
from ..rewards import TEMPLATE_TAG
from ..visible_text import VisibleConsole
from .serve import ServeSettings, open_server
from .tasks import trained_as

if TYPE_CHECKING:
    from openai import OpenAI


class ChatSettings(AdaptedModelSettings):
    """The settings of `chat`."""

    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        "Model": tuple(AdaptedModelSettings.model_fields),
        "Chat": ("temperature", "max_new_tokens", "max_turns", "tools"),
    }

    temperature: float = Field(default=0.0, ge=0, le=2)
    """Sampling temperature; 0 always takes the most likely token."""
    max_new_tokens: int = Field(default=256, ge=1)
    """At most this many sampled tokens in one model call."""
    max_turns: int = Field(default=10, ge=1)
    """At most this many model calls to answer a message."""
    tools: bool = True
    """Offer the tools of the trained agent, or of the math agent, under its system prompt."""


logger = logging.getLogger(__name__)

_BEGUN_TAG: Final = re.compile(r"(?:<[^<>\n]{0,42}|\[/?[A-Z_]{0,20})\Z")
"""Text that may be the beginning of a tag."""
_CUT_TAG: Final = re.compile(r"(?:<\|[^<>\n]*|</?(?:tool|think|answer)\w*)\Z")
"""A tag whose end is missing, because the reply reached its length limit."""
_HELP = (
    "Type a message. /new starts over, /help shows this, /quit, exit or Ctrl-D ends. Ctrl-C stops a reply, and ends "
    "while there is none."
)
_END_COMMANDS = ("/quit", "/exit", "quit", "exit")
_COMMAND = re.compile(r"/\w+")


class ReplyText:
    """Removes the tags of the chat template, and white space at both ends, from a reply that arrives in pieces."""

    def __init__(self) -> None:
        self._held = ""
        self._has_begun = False

    def feed(self, text: str) -> str:
        """Return the text that can be shown once `text` has been added."""
        text = TEMPLATE_TAG.sub("", self._held + text)
        if not self._has_begun:
            text = text.lstrip()
        begun_tag = _BEGUN_TAG.search(text)
        shown = text[: begun_tag.start() if begun_tag else None].rstrip()
        self._held = text[len(shown) :]
        self._has_begun = self._has_begun or bool(shown)
        return shown

    def finish(self) -> str:
        """Return the rest of the reply."""
        return _CUT_TAG.sub("", self._held).rstrip()


@dataclass
class Conversation:
    """A conversation; `messages` holds it as OpenAI messages."""

    client: OpenAI
    """Client of the endpoint."""
    model: str
    """Name of the model."""
    console: Console
    """Console for replies and tool calls."""
    offered: ChatTools
    """System prompt and tools; an empty prompt is left out."""
    max_turns: int
    """At most this many model calls for one message."""
    sampling: dict[str, Any] = field(default_factory=dict)
    """Further arguments of every call, e.g. temperature."""
    messages: list[dict[str, Any]] = field(default_factory=list)

    def say(self, text: str) -> str:
        """Send a message, show the replies and tool calls, and return the last reply as it is shown.

        A failed or interrupted exchange leaves `messages` unchanged.

        Raises:
            openai.OpenAIError: the endpoint refused the call or cannot be reached.
            KeyboardInterrupt: Ctrl-C during a reply.
        """
        before = list(self.messages)
        if not self.messages and self.offered.system_prompt:
            self.messages.append({"role": "system", "content": self.offered.system_prompt})
        self.messages.append({"role": "user", "content": text})
        try:
            for _ in range(self.max_turns):
                reply = self._reply()
                self.messages.append(reply)
                if not reply.get("tool_calls"):
                    return TEMPLATE_TAG.sub("", reply["content"]).strip()
                for call in reply["tool_calls"]:
                    name, arguments = call["function"]["name"], call["function"]["arguments"]
                    run = self.offered.call
                    result = "error: no tool is offered" if run is None else run(name, arguments)
                    self._show(f"  → {name} {arguments}", style="cyan")
                    self._show(f"  ← {result}", style="green")
                    self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        except BaseException:
            self.messages = before
            raise
        self._show(f"(no answer after --max-turns {self.max_turns} model calls)", style="yellow")
        return ""

    def _reply(self) -> dict[str, Any]:
        """Return one streamed reply as an assistant message with its tags; its text is shown as it arrives."""
        request: dict[str, Any] = {"model": self.model, "messages": self.messages, "stream": True, **self.sampling}
        if self.offered.tools:
            request["tools"] = list(self.offered.tools)
        stream: Any = self.client.chat.completions.create(**request)
        content, shown, text = "", "", ReplyText()
        calls: dict[int, dict[str, Any]] = {}
        with stream:
            for chunk in stream:
                if not chunk.choices:
                    continue
                delta = chunk.choices[0].delta
                if delta.content:
                    content += delta.content
                    piece = text.feed(delta.content)
                    self._show(piece, end="")
                    shown += piece
                for part in delta.tool_calls or []:
                    call = calls.setdefault(
                        part.index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
                    )
                    call["id"] = part.id or call["id"]
                    if part.function is not None:
                        call["function"]["name"] += part.function.name or ""
                        call["function"]["arguments"] += part.function.arguments or ""
        rest = text.finish()
        if shown or rest:
            self._show(rest)
        reply: dict[str, Any] = {"role": "assistant", "content": content}
        if calls:
            reply["tool_calls"] = [calls[index] for index in sorted(calls)]
        return reply

    def _show(self, text: str, *, end: str = "\n", style: str | None = None) -> None:
        self.console.print(text, end=end, style=style, markup=False, highlight=False, soft_wrap=True)


def chat(settings: ChatSettings) -> None:
    """Talk to a model or an adapter, with the tools of the agent that it was trained as."""
    from openai import OpenAI

    console = VisibleConsole()
    load = AdaptedModelSettings(**settings.model_dump(include=set(AdaptedModelSettings.model_fields)))
    trained = trained_as(load)
    families = [find_family(name) for name in ((trained.name,) if trained else ())] + [find_family(MATH)]
    tools = [None if family is None else family.chat() for family in families]
    if settings.tools and trained is not None and trained.name != MATH and tools[0] is None:
        logger.warning(
            "%s was trained as %s, whose tools and prompt are not available: the chat uses those of the math agent. "
            "`eval --output FILE` keeps conversations with the agent itself",
            trained.adapter,
            trained.name,
        )
    offered = next((each for each in tools if each is not None and settings.tools), ChatTools(""))
    with open_server(ServeSettings(load=load, server=ServerSettings(port=0))) as server:
        conversation = Conversation(
            client=OpenAI(base_url=server.endpoint, api_key="none", max_retries=0),
            model=server.model_name,
            console=console,
            offered=offered,
            max_turns=settings.max_turns,
            sampling={"temperature": settings.temperature, "max_tokens": settings.max_new_tokens},
        )
        mark = "[bold]> [/bold]" if sys.stdin.isatty() else ""
        talk(conversation, lambda: console.input(mark))


def talk(conversation: Conversation, read: Callable[[], str]) -> None:
    """Answer the lines that `read` returns, until it raises EOFError or returns a command that ends.

    A failed call is shown in one line and the conversation goes on; Ctrl-C stops a reply.

    Raises:
        KeyboardInterrupt: Ctrl-C while waiting for a line.
    """
    from openai import OpenAIError

    if sys.stdin.isatty():
        conversation.console.print(_HELP, style="dim")
    while True:
        try:
            line = read().strip()
        except EOFError:
            return
        if line in _END_COMMANDS:
            return
        if line == "/new":
            conversation.messages = []
        elif _COMMAND.fullmatch(line):
            conversation.console.print(_HELP if line == "/help" else f"{line} is no command. {_HELP}", style="dim")
        elif line:
            try:
                conversation.say(line)
            except KeyboardInterrupt:
                if terminated():
                    raise
                conversation.console.print("\n(stopped)", style="yellow")
            except (OpenAIError, UserError) as error:
                conversation.console.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
