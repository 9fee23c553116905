"""Base classes of dialects.

A dialect is a wire format that agents speak. It turns a request into the body of a chat request, and the chat
completion, whole or chunk by chunk, into an answer of its own form. The gateway on a policy and the proxy serve all of
them.
"""

from __future__ import annotations

import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import isclass
from io import StringIO
from typing import Any, ClassVar, Final, Literal, TypeAlias, get_args

from ...http import ANYBODY, BadRequestError, Body, HttpError, encode
from ..errors import UnavailableError
from .parameters import unknown_fields
from .reader import CallDelta, ChatReader

Json: TypeAlias = dict[str, Any]
ItemKind = Literal["reasoning", "text", "call"]
CallScope: TypeAlias = tuple[str, str] | None
"""(rollout id, attempt id) that a call belongs to; None outside of rollouts."""
Lookup: TypeAlias = Callable[[str, CallScope, str, Mapping[str, str]], Json]
"""Reads or deletes a kept answer. Returns the body, given the id of the answer, the scope, the client's API key and the
query; raises a HttpError if the answer is not kept, or belongs to another client."""

_MAX_ITEMS: Final = 1000
"""Items (text, reasoning, calls) of one answer."""


@dataclass(frozen=True)
class Caller:
    """The sender of a call."""

    scope: CallScope = None
    agent: str | None = None
    """Name of the agent, if the request has one."""
    traceparent: str | None = None
    """W3C trace context of the request."""


class Exchange:
    """One request with its answer: translates both between the dialect and chat completions. This class leaves them as
    they are, for chat completions themselves.

    Args:
        chat: the body of the chat request.
    """

    counts_first: ClassVar[bool] = False
    """True if the first event of a stream reports the number of prompt tokens."""

    def __init__(self, chat: Json) -> None:
        self.chat = chat

    def answer(self, completion: Json) -> Json:
        """Return the body of the answer, given a whole `chat.completion`."""
        return completion

    def events(self, chunk: Json) -> bytes:
        """Return the server-sent events for the next `chat.completion.chunk`; may be empty."""
        return server_sent(chunk)

    def end(self) -> bytes:
        """Return the events after the last chunk of a complete stream."""
        return b"data: [DONE]\n\n"

    def failed(self, error: HttpError) -> bytes:
        """Return the events that end a stream with an error."""
        return server_sent(error.body())


class Dialect(ABC):
    """A wire format. Used from one event loop; its memory is bounded."""

    path: str
    """The path at which it is served, e.g. `/v1/chat/completions`."""
    request: ClassVar[type[Body]]
    """The model that validates requests."""
    further: ClassVar[Collection[str]] = ()
    """Fields of requests that are read beside those of `request`."""
    tool_kinds: ClassVar[Collection[str | None]] = ("function", None)
    """Values of a tool's `type` that are served."""
    chat_fields: ClassVar[Mapping[str, str]] = {}
    """Names of the chat request's fields in this dialect, where they differ; see `renamed`."""
    lookups: Mapping[tuple[str, str], Lookup] = {}
    """Lookups of kept answers by method and path; the path contains `{id}`."""
    counting_path: ClassVar[str] = ""
    """The path that counts the tokens of a prompt; empty if there is none."""
    counting_fields: ClassVar[Json] = {}
    """Required fields of a request that have no effect on the count."""
    counting_answer: ClassVar[Json] = {}
    """Fields of the answer beside the count."""

    @abstractmethod
    def open(self, body: Json, scope: CallScope, key: str = ANYBODY) -> Exchange:
        """Read a request.

        Args:
            body: the JSON object.
            scope: the attempt that sends it.
            key: the client's API key; only this client can look up or continue what is kept of the request.

        Raises:
            HttpError: the request cannot be served; a BadRequestError names the field in `param`.
        """

    def left_out(self, body: Json) -> list[str]:
        """Return the parts of a request that are ignored: unknown fields, also of objects in it, and tools of kinds
        that are not served."""
        known = _fields(self.request)
        ignored = unknown_fields(body, known.keys() | self.further if self.further else known)
        for name, value in body.items():
            inner = known.get(name)
            if inner and isinstance(value, dict):
                ignored += [f"{name}.{key}" for key in value if key not in inner and value[key] is not None]
        tools = body.get("tools")
        kinds = [tool.get("type") for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
        return [*ignored, *(f"tools[{at}] ({kind})" for at, kind in enumerate(kinds) if kind not in self.tool_kinds)]

    def refusal(self, error: HttpError) -> Json:
        """Return the body that reports an error of the chat request; by default in OpenAI's form."""
        return renamed(error, self.chat_fields).body()

    def forget(self, scope: CallScope, key: str) -> None:  # noqa: B027  # most dialects remember nothing
        """Drop all memory of an attempt."""


@cache
def _fields(request: type[Body]) -> dict[str, frozenset[str]]:
    """Return the fields of a request, each with the fields of the objects that it may be."""
    fields = {}
    for name, info in request.model_fields.items():
        bodies = [kind for kind in (info.annotation, *get_args(info.annotation)) if isclass(kind)]
        inner = [kind.model_fields for kind in bodies if issubclass(kind, Body)]
        fields[name] = frozenset(field.alias or key for each in inner for key, field in each.items())
    return fields


def served_tools(tools: Sequence[Json] | None, kinds: Collection[str | None]) -> list[tuple[str, Json]]:
    """Return the tools of the served kinds, each after its place in the request; all tools if none is served, so that
    the validation reports them."""
    placed = [(f"tools[{index}]", tool) for index, tool in enumerate(tools or ())]
    return [(place, tool) for place, tool in placed if tool.get("type") in kinds] or placed


def joined_text(content: Any, where: str, fields: Mapping[str, str], between: str = "") -> str:
    """Return the text of a content: text, or a list of parts of text.

    Args:
        content: the content.
        where: its place in the request, for errors.
        fields: the field that has the text, for each type of part.
        between: text between two parts.

    Raises:
        BadRequestError: it is neither; `param` names the place.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRequestError(f"{where}: expected text or a list of parts", param=where)
    return between.join(text_of_part(part, f"{where}[{index}]", fields) for index, part in enumerate(content))


def text_of_part(part: Any, where: str, fields: Mapping[str, str]) -> str:
    """Return the text of a part; see `joined_text`."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    field = fields.get(kind) if isinstance(kind, str) else None
    text = part.get(field) if field else None
    if not isinstance(text, str):
        raise BadRequestError(f"{where}: expected a part that is text, not {kind!r}", param=where)
    return text


def chat_request(model: str, messages: Sequence[Json], options: Mapping[str, Any], stream: bool | None) -> Json:
    """Return the body of a chat request with those options that are not None."""
    chat: Json = {"model": model, "messages": list(messages)}
    chat |= {name: value for name, value in options.items() if value is not None}
    return chat | ({"stream": True, "stream_options": {"include_usage": True}} if stream else {})


def renamed(error: HttpError, names: Mapping[str, str]) -> HttpError:
    """Return an error of the chat request with the field names of a dialect.

    Args:
        names: the dialect's names of fields of the chat request, where they differ; `[]` stands for any index.
    """
    param = error.param or ""
    plain, indices = re.sub(r"\[\d+\]", "[]", param), iter(re.findall(r"\[\d+\]", param))
    inside = [name for name in names if plain == name or plain.startswith((f"{name}.", f"{name}["))]
    if not inside:
        return error
    field = max(inside, key=len)
    renamed_param = re.sub(r"\[\]", lambda _: next(indices), names[field])
    path, _, rest = error.message.partition(":")
    message = f"{renamed_param}:{rest}" if path in (field, error.param) else error.message
    return HttpError(message, param=renamed_param, code=error.code, kind=error.kind, status=error.status)


def server_sent(value: Mapping[str, Any], event: str | None = None) -> bytes:
    """Return one server-sent event."""
    name = b"" if event is None else f"event: {event}\n".encode()
    return name + b"data: " + encode(value) + b"\n\n"


def sent(events: Sequence[Json]) -> bytes:
    """Return server-sent events that are named after their type."""
    return b"".join(server_sent(event, event["type"]) for event in events)


class AnswerItem(ABC):
    """One item of an answer: reasoning, text or a call. It is opened, grows by pieces of text, and is closed.

    Args:
        kind: its kind.
        index: its position among the items.
        call: the first piece of a call; None for other kinds.
    """

    def __init__(self, kind: ItemKind, index: int, call: CallDelta | None = None) -> None:
        self.kind = kind
        self.index = index
        self.name = "" if call is None else call.name
        self.call_id = "" if call is None else call.id
        self._text = StringIO()

    @property
    def text(self) -> str:
        """The text so far; for a call its arguments."""
        return self._text.getvalue()

    def add(self, text: str) -> list[Json]:
        """Add text; return the events that report it."""
        self._text.write(text)
        return self.grown(text)

    @abstractmethod
    def begin(self) -> list[Json]:
        """Return the events that open the item."""

    @abstractmethod
    def grown(self, text: str) -> list[Json]:
        """Return the events that report a further piece of text."""

    @abstractmethod
    def end(self, status: str) -> list[Json]:
        """Return the events that close the item with this status."""

    @abstractmethod
    def body(self) -> Json:
        """Return the item in its current state."""


class ItemExchange(Exchange, ABC):
    """An exchange whose answer is a list of items."""

    id_prefix: ClassVar[str]
    """Prefix of the id of an answer; the rest is that of the recorded chat completion."""

    def __init__(self, chat: Json) -> None:
        super().__init__(chat)
        self._id = ""
        self.reader = ChatReader()
        self.items: list[AnswerItem] = []
        self._calls: dict[int, AnswerItem] = {}
        """The calls among the items, by their number in the chat completion."""
        self._open: AnswerItem | None = None

    @property
    def id(self) -> str:
        """The id of the answer."""
        if not self._id:
            self._id = self.id_prefix + (self.reader.id.removeprefix("chatcmpl-") or uuid.uuid4().hex)
        return self._id

    @abstractmethod
    def begin(self) -> list[Json]:
        """Return the events before the first item, once."""

    @abstractmethod
    def new_item(self, kind: ItemKind, call: CallDelta | None) -> AnswerItem:
        """Return the next item."""

    def take(self, body: Json) -> list[Json]:
        """Read a chat completion or a chunk; return the events that report it.

        Raises:
            UnavailableError: an upstream interleaved the parts of several calls, or sent too many items.
        """
        delta = self.reader.take(body)
        events = self.begin()
        if delta.reasoning:
            events += self._add_text("reasoning", delta.reasoning)
        if delta.text:
            events += self._add_text("text", delta.text)
        for part in delta.calls:
            call = self._calls.get(part.index)
            if call is None:
                events += self.add_item("call", part)
                call = self._calls[part.index] = self.items[-1]
            elif call is not self._open:
                raise UnavailableError("the model's server mixed the parts of several tool calls")
            events += call.add(part.arguments)
        return events

    def _add_text(self, kind: ItemKind, text: str) -> list[Json]:
        events = [] if self._open is not None and self._open.kind == kind else self.add_item(kind)
        return events + self.items[-1].add(text)

    def add_item(self, kind: ItemKind, call: CallDelta | None = None) -> list[Json]:
        """Close the open item and open the next one; return the events."""
        if len(self.items) == _MAX_ITEMS:
            raise UnavailableError(f"the model's server went back and forth between more than {_MAX_ITEMS} parts")
        events = self.close_item("completed")
        self._open = self.new_item(kind, call)
        self.items.append(self._open)
        return events + self._open.begin()

    def close_item(self, status: str) -> list[Json]:
        """Close the open item, if there is one; return the events."""
        item, self._open = self._open, None
        return [] if item is None else item.end(status)
