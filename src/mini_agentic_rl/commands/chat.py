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

    temperature: float = Field(default=0.0, ge=0)
    """Sampling temperature; 0 always takes the likeliest token."""
    max_new_tokens: int = Field(default=256, ge=1)
    """At most this many sampled tokens in one model call."""
    max_turns: int = Field(default=10, ge=1)
    """At most this many model calls for one message of yours."""
    tools: bool = True
    """Offer the math agent's tools to the model, under its system prompt."""


_BLOCKS: Final = {
    "<tool_call>": ("</tool_call>", "→ a tool call that cannot be read: "),
    "<tool_response>": ("</tool_response>", "← a result that the model made up: "),
}
"""Opening tags of what a person reads on a line of its own: the closing tag, and the words before it."""
_BEGUN: Final = re.compile(r"(?:<[^<>\n]{0,42}|\[/?[A-Z_]{0,20})\Z")
"""Text that may be the beginning of a tag."""
_CUT: Final = re.compile(r"(?:<\|[^<>\n]*|</?(?:tool|think|answer)\w*)\Z")
"""A tag whose end is missing, because the reply was as long as it may be."""


@dataclass(frozen=True)
class Said:
    """A part of a reply."""

    text: str
    is_aside: bool = False
    """True for a line about what the model wrote, in place of it."""


class ReplyText:
    """Takes the text of one reply piece by piece; gives out what can be shown."""

    def __init__(self) -> None:
        self._held = ""
        self._spaces = ""
        self._block = ""
        self._has_begun = False
        self._drops_spaces = False

    def feed(self, text: str) -> list[Said]:
        """Return the parts that are certain once `text` has been added."""
        self._held += text
        parts: list[Said] = []
        while self._read(parts):
            pass
        return parts

    def finish(self) -> list[Said]:
        """Return the rest, when the reply has ended. White space at its end is dropped."""
        parts: list[Said] = []
        held, self._held = self._held, ""
        if self._block:
            self._tell(held, parts)
        else:
            self._say(_CUT.sub("", held), parts)
        return parts

    def _read(self, parts: list[Said]) -> bool:
        """Read up to the end of the next tag or block; return False when that is still to come."""
        if self._block:
            inside, closed, rest = self._held.partition(_BLOCKS[self._block][0])
            if closed:
                self._held = rest
                self._tell(inside, parts)
            return bool(closed)
        found = TEMPLATE_TAG.search(self._held)
        if found is None:
            begun = _BEGUN.search(self._held)
            end = begun.start() if begun else len(self._held)
            said, self._held = self._held[:end], self._held[end:]
            self._say(said, parts)
            return False
        self._say(self._held[: found.start()], parts)
        self._held = self._held[found.end() :]
        if found[0] in _BLOCKS:
            self._block = found[0]
        else:
            self._drops_spaces = bool(self._spaces)  # those before the tag stay
        return True

    def _say(self, text: str, parts: list[Said]) -> None:
        if self._drops_spaces or not self._has_begun:
            text = text.lstrip()
        kept = text.rstrip()
        if kept:
            parts.append(Said(self._spaces + kept))
            self._has_begun, self._drops_spaces, self._spaces = True, False, ""
        self._spaces += text[len(kept) :]

    def _tell(self, inside: str, parts: list[Said]) -> None:
        words, self._block = _BLOCKS[self._block][1], ""
        self._spaces, self._has_begun = "", False
        parts.append(Said(words + " ".join(TEMPLATE_TAG.sub(" ", inside).split()), is_aside=True))


def words_of_reply(text: str) -> str:
    """Return a whole reply without the template's words and asides."""
    reader = ReplyText()
    return "".join(part.text for part in reader.feed(text) + reader.finish() if not part.is_aside)


logger = logging.getLogger(__name__)

_HELP = (
    "Type a message. /new starts over, /help shows this, /quit, exit or Ctrl-D ends. Ctrl-C stops a reply, and ends "
    "while there is none."
)
_ENDS = ("/quit", "/exit", "quit", "exit")
_COMMAND = re.compile(r"/\w+")


@dataclass
class Conversation:
    """One conversation; `messages` holds it as OpenAI messages."""

    client: OpenAI
    """Client of the endpoint."""
    model: str
    """Model name to ask for."""
    console: Console
    """Console that shows replies and tool calls."""
    system_prompt: str | None = None
    """First message of the conversation, if any."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    """Tools offered to the model."""
    use_tool: Callable[[str, str], str] | None = None
    """Runs a tool: (name, JSON arguments) → text for the model."""
    max_turns: int = 1
    """At most this many model calls for one message."""
    sampling: dict[str, Any] = field(default_factory=dict)
    """Further arguments of every call, e.g. temperature."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    _in_line: bool = field(default=False, init=False)
    """True while the line on the console has not ended."""

    def say(self, text: str) -> str:
        """Send a message and return the answer as it is shown.

        A failed or interrupted exchange leaves no trace in `messages`.

        Raises:
            openai.OpenAIError: the endpoint refused the call or cannot be reached.
            KeyboardInterrupt: Ctrl-C while the model was answering.
        """
        before, self._in_line = list(self.messages), False
        if not self.messages and self.system_prompt:
            self.messages.append({"role": "system", "content": self.system_prompt})
        self.messages.append({"role": "user", "content": text})
        try:
            for _ in range(self.max_turns):
                reply = self._reply()
                self.messages.append(reply)
                if not reply.get("tool_calls"):
                    return words_of_reply(reply["content"])
                self._use_tools(reply["tool_calls"])
        except BaseException:
            self.messages = before
            raise
        self._show(f"(no answer after --max-turns {self.max_turns} model calls)", style="yellow")
        return ""

    def reset(self) -> None:
        """Forget everything said so far."""
        self.messages = []

    def _reply(self) -> dict[str, Any]:
        """One streamed model call as an assistant message, in the model's own words; its text is shown as it arrives,
        without what belongs to the template."""
        request: dict[str, Any] = {"model": self.model, "messages": self.messages, "stream": True, **self.sampling}
        if self.tools:
            request["tools"] = self.tools
        stream: Any = self.client.chat.completions.create(**request)
        content, shown = "", ReplyText()
        calls: dict[int, dict[str, Any]] = {}
        with stream:
            for chunk in stream:
                if not chunk.choices:
                    continue
                delta = chunk.choices[0].delta
                if delta.content:
                    content += delta.content
                    self._tell(shown.feed(delta.content))
                for part in delta.tool_calls or []:
                    call = calls.setdefault(
                        part.index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
                    )
                    call["id"] = part.id or call["id"]
                    if part.function is not None:
                        call["function"]["name"] += part.function.name or ""
                        call["function"]["arguments"] += part.function.arguments or ""
        self._tell(shown.finish())
        self._end_line()
        reply: dict[str, Any] = {"role": "assistant", "content": content}
        if calls:
            reply["tool_calls"] = [calls[index] for index in sorted(calls)]
        return reply

    def _use_tools(self, calls: list[dict[str, Any]]) -> None:
        for call in calls:
            function = call["function"]
            result = "error: no tool is offered"
            if self.use_tool is not None:
                result = self.use_tool(function["name"], function["arguments"])
            self._show(f"  → {function['name']} {function['arguments']}", style="cyan")
            self._show(f"  ← {result}", style="green")
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

    def _tell(self, parts: list[Said]) -> None:
        for part in parts:
            if part.is_aside:
                self._end_line()
                self._show(f"  {part.text}", style="yellow")
            else:
                self._show(part.text, end="")
                self._in_line = True

    def _end_line(self) -> None:
        if self._in_line:
            self._show("")
        self._in_line = False

    def _show(self, text: str, *, end: str = "\n", style: str | None = None) -> None:
        self.console.print(text, end=end, style=style, markup=False, highlight=False, soft_wrap=True)


def chat(settings: ChatSettings) -> None:
    """Talk to a model or an adapter, with the math agent's tools."""
    from openai import OpenAI

    console = VisibleConsole()
    load = AdaptedModelSettings(**settings.model_dump(include=set(AdaptedModelSettings.model_fields)))
    trained = trained_as(load)
    offered = _tools_of(trained.name) if trained is not None else None
    if offered is None and settings.tools and trained is not None and trained.name != MATH:
        logger.warning(
            "%s was trained as %s, whose tools and prompt are not here: this is the math agent's. "
            "`eval --output FILE` keeps conversations of its own",
            trained.adapter,
            trained.name,
        )
    offered = offered or _tools_of(MATH) or ChatTools("")
    with open_server(ServeSettings(load=load, server=ServerSettings(port=0))) as server:
        conversation = Conversation(
            client=OpenAI(base_url=server.endpoint, api_key="none", max_retries=0),
            model=server.model_name,
            console=console,
            system_prompt=offered.system_prompt if settings.tools else None,
            tools=list(offered.tools) if settings.tools else [],
            use_tool=offered.call,
            max_turns=settings.max_turns,
            sampling={"temperature": settings.temperature, "max_tokens": settings.max_new_tokens},
        )
        mark = "[bold]> [/bold]" if sys.stdin.isatty() else ""
        talk(conversation, lambda: console.input(mark))


def _tools_of(agent: str) -> ChatTools | None:
    """Return what a chat with an agent offers; None for an agent that is none of ours, or that cannot chat."""
    family = find_family(agent)
    return None if family is None else family.chat()


def talk(conversation: Conversation, read: Callable[[], str]) -> None:
    """Answer what `read` gives, line by line, until it raises EOFError or gives a word that ends.

    A failed call is told in one line and the conversation goes on; Ctrl-C stops the reply that is being written.

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
        if line in _ENDS:
            return
        if line == "/new":
            conversation.reset()
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
