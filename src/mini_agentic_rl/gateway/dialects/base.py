"""What dialects have in common: requests that become chat requests, and answers read from chat completions.

A dialect is a wire format that agents speak. Its request becomes the body of a chat request, the one form that is
served inside; the answer, whole or chunk by chunk, goes back in the dialect's own shape. Both gateways, the one over a
policy and the one over upstreams, serve every dialect.
"""

from __future__ import annotations

import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isclass
from io import StringIO
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias, get_args

from ...chat_messages import thought_of
from ...http import ANYBODY, Body, HttpError, encode
from ..errors import UnavailableError
from .parameters import unknown_fields

Json: TypeAlias = dict[str, Any]
ItemKind = Literal["reasoning", "text", "call"]
CallScope: TypeAlias = tuple[str, str] | None
"""(rollout id, attempt id) of the rollout that a call belongs to; None for a call outside of any."""

_MOST_ITEMS: Final = 1000
"""Most items (text, reasoning, calls) of one answer in the dialects that have such."""
_LONGEST_NAME: Final = 200


@dataclass(frozen=True)
class Caller:
    """Who makes a call."""

    scope: CallScope = None
    """(rollout id, attempt id) that it belongs to; None outside of any rollout."""
    agent: str | None = None
    """Name of the agent, where the call carries one."""
    traceparent: str | None = None
    """W3C trace context of the request."""


class Exchange(Protocol):
    """One request and its answer, both in the dialect and as chat completions."""

    counts_first: ClassVar[bool]
    """True if the first event of a stream reports how many tokens the prompt has."""

    @property
    def chat(self) -> Json:
        """The body of the chat request that is served."""

    def answer(self, completion: Json) -> Json:
        """Return the body of the answer, from a whole `chat.completion`."""

    def events(self, chunk: Json) -> bytes:
        """Return the server-sent events for the next `chat.completion.chunk`; may be none."""

    def end(self) -> bytes:
        """Return the events after the last chunk of a stream that is complete."""

    def failed(self, error: HttpError) -> bytes:
        """Return the events that end a stream which failed on its way."""


@dataclass(frozen=True)
class Lookup:
    """A further path of a dialect, answered from what it remembers."""

    method: str
    path: str
    """Has `{id}` in it."""
    answer: Callable[[str, CallScope, str, Mapping[str, str]], Json]
    """The body of the answer for that id, the scope of the URL, the key of the client and the query of the URL; raises
    a HttpError where there is none, or it is another's."""


@dataclass(frozen=True)
class Counting:
    """A path of a dialect that tells how many tokens the prompt of a request has."""

    path: str
    chat: Callable[[Json, CallScope, str], Json]
    """The chat request of the body that was sent, under a scope and with a key; raises a HttpError where it cannot be
    read."""
    answer: Callable[[int], Json]
    """The body of the answer."""


class Dialect(ABC):
    """Opens exchanges. Used from one event loop; what it remembers between requests is bounded."""

    path: str
    """The path that it is served at, e.g. `/v1/chat/completions`."""
    request: ClassVar[type[Body]]
    """Its requests, checked."""
    further: ClassVar[Collection[str]] = ()
    """Fields of its requests that are read beside those."""
    tool_kinds: ClassVar[Collection[str | None]] = ("function", None)
    """Values of a tool's `type` that can be served."""
    lookups: Sequence[Lookup] = ()
    """Paths beside it, for a dialect that remembers what it has answered."""
    counting: Counting | None = None
    """The path at which prompts are counted; None where the dialect has no such thing."""

    @abstractmethod
    def open(self, body: Json, scope: CallScope, key: str = ANYBODY) -> Exchange:
        """Read a request.

        Args:
            body: the JSON object that was sent.
            scope: the attempt whose request it is.
            key: the client's, which alone reaches again what is kept of this request.

        Raises:
            HttpError: the request cannot be served; a BadRequestError names the field in `param`.
        """

    def left_out(self, body: Json) -> list[str]:
        """Return what a request asks for that its answer does not take into account: unknown fields, also of objects in
        it, and tools of other kinds beside those that can be served."""
        known = self.request.model_fields
        ignored = unknown_fields(body, {*known, *self.further})
        for name, info in known.items():
            inner = {one.alias or key for kind in _bodies(info.annotation) for key, one in kind.model_fields.items()}
            value = body.get(name)
            if inner and isinstance(value, dict):
                ignored += [f"{name}.{key}" for key in value if key not in inner and value[key] is not None]
        tools = body.get("tools")
        kinds = [tool.get("type") for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
        return [*ignored, *(f"tools[{at}] ({kind})" for at, kind in enumerate(kinds) if kind not in self.tool_kinds)]

    def refusal(self, error: HttpError) -> Json:
        """Return the body that tells of an error; OpenAI's, where the dialect has no other."""
        return error.body()

    def forget(self, scope: CallScope, key: str) -> None:  # noqa: B027  # most dialects remember nothing
        """Drop what is remembered of an attempt."""


def _bodies(annotation: Any) -> list[type[Body]]:
    """Return the objects that a field may be."""
    return [kind for kind in (annotation, *get_args(annotation)) if isclass(kind) and issubclass(kind, Body)]


def assistant_message(text: str, reasoning: str | None, calls: Sequence[Json]) -> Json:
    """Return an answer as chat completions have it; its content is null where it does nothing but call."""
    message: Json = {"role": "assistant", "content": text or (None if calls else "")}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = list(calls)
    return message


def served_tools(tools: Sequence[Json] | None, kinds: Collection[str | None]) -> list[tuple[str, Json]]:
    """Return the tools of the kinds that are served, each with its place; all of them where there is no such one, so
    that whoever reads them says what is wrong."""
    placed = [(f"tools[{index}]", tool) for index, tool in enumerate(tools or ())]
    return [one for one in placed if one[1].get("type") in kinds] or placed


def renamed(error: HttpError, names: Mapping[str, str]) -> HttpError:
    """Return an error of the chat request in the words of a dialect.

    Args:
        names: what the dialect calls a field of the chat request, where it calls it otherwise; `[]` is any index.
    """
    param = error.param or ""
    plain, indices = re.sub(r"\[\d+\]", "[]", param), iter(re.findall(r"\[\d+\]", param))
    field = next((name for name in sorted(names, key=len, reverse=True) if _is_in(plain, name)), None)
    if field is None:
        return error
    renamed_param = re.sub(r"\[\]", lambda _: next(indices), names[field])
    path, _, rest = error.message.partition(":")
    message = f"{renamed_param}:{rest}" if path in (field, error.param) else error.message
    new = HttpError(message, param=renamed_param, code=error.code, kind=error.kind)
    new.status = error.status
    return new


def _is_in(path: str, field: str) -> bool:
    return path == field or path.startswith((f"{field}.", f"{field}["))


def server_sent(value: Mapping[str, Any], event: str | None = None) -> bytes:
    """Return one server-sent event."""
    name = b"" if event is None else f"event: {event}\n".encode()
    return name + b"data: " + encode(value) + b"\n\n"


def sent(events: Sequence[Json]) -> bytes:
    """Return server-sent events that are named by their type."""
    return b"".join(server_sent(event, event["type"]) for event in events)


@dataclass(frozen=True)
class CallDelta:
    """A tool call, or a further piece of one."""

    index: int
    """Number of the call in the answer."""
    id: str
    name: str
    arguments: str
    """JSON text, or a piece of it."""


@dataclass(frozen=True)
class AnswerDelta:
    """An addition to the answer."""

    reasoning: str = ""
    text: str = ""
    calls: tuple[CallDelta, ...] = ()
    logprobs: tuple[Json, ...] = ()
    """Entries of OpenAI's `logprobs.content`."""


@dataclass
class ChatReader:
    """One answer as it arrives."""

    id: str = ""
    created: int = 0
    model: str = ""
    finish_reason: str | None = None
    stop_string: str | None = None
    """The stop string that ended it, where the server tells (`stop_reason`, as vLLM names it)."""
    prompt_token_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    usage: Json = field(default_factory=dict)

    def take(self, body: Json) -> AnswerDelta:
        """Read a `chat.completion` or a `chat.completion.chunk`; return what it adds."""
        self.id = self.id or _text(body.get("id"))[:_LONGEST_NAME]
        self.model = self.model or _text(body.get("model"))[:_LONGEST_NAME]
        self.created = self.created or _count(body.get("created"))
        self.prompt_token_ids = self.prompt_token_ids or _ids(body.get("prompt_token_ids"))
        self.usage = _object(body.get("usage")) or self.usage
        for choice in _objects(body.get("choices")):
            if not choice.get("index"):
                return self._take_choice(choice)
        return AnswerDelta()

    def _take_choice(self, choice: Json) -> AnswerDelta:
        self.finish_reason = _text(choice.get("finish_reason")) or self.finish_reason
        self.stop_string = _text(choice.get("stop_reason")) or self.stop_string
        self.token_ids += _ids(choice.get("token_ids"))
        said = _object(choice.get("message")) or _object(choice.get("delta"))
        return AnswerDelta(
            reasoning=thought_of(said) or "",
            text=_text(said.get("content")),
            calls=tuple(_calls(said.get("tool_calls"))),
            logprobs=tuple(_objects(_object(choice.get("logprobs")).get("content"))),
        )

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, as the server counts them."""
        return _count(self.usage.get("prompt_tokens"))

    @property
    def completion_tokens(self) -> int:
        """Tokens of the answer, as the server counts them."""
        return _count(self.usage.get("completion_tokens"))

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that were not computed again."""
        return _count(_object(self.usage.get("prompt_tokens_details")).get("cached_tokens"))

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the answer that are reasoning."""
        return _count(_object(self.usage.get("completion_tokens_details")).get("reasoning_tokens"))


def _calls(value: Any) -> Iterator[CallDelta]:
    for position, call in enumerate(_objects(value)):
        function = _object(call.get("function"))
        index = call.get("index")
        yield CallDelta(
            index=index if isinstance(index, int) else position,
            id=_text(call.get("id")),
            name=_text(function.get("name")),
            arguments=_text(function.get("arguments")),
        )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else 0


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _ids(value: Any) -> list[int]:
    return [item for item in value if isinstance(item, int)] if isinstance(value, list) else []


class AnswerItem(ABC):
    """One item of an answer: reasoning, text or a call. It is opened, grows by pieces of text, and is closed.

    Args:
        kind: what it is.
        index: its place among the items.
        call: the first piece of a call; None for other kinds.
    """

    call_prefix: ClassVar[str] = "call_"
    """Beginning of the id of a call that the server gives none."""

    def __init__(self, kind: ItemKind, index: int, call: CallDelta | None = None) -> None:
        self.kind = kind
        self.index = index
        self.name = "" if call is None else call.name
        self.call_id = "" if call is None else call.id or f"{self.call_prefix}{uuid.uuid4().hex[:24]}"
        self._text = StringIO()

    @property
    def text(self) -> str:
        """The text so far; the arguments of a call."""
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
        """Return the events that close the item, with the status that it ends in."""

    @abstractmethod
    def body(self) -> Json:
        """Return the item as it stands."""


class ItemExchange(ABC):
    """An exchange whose answer is a list of items.

    Args:
        chat: the body of the chat request.
    """

    counts_first: ClassVar[bool] = False

    def __init__(self, chat: Json) -> None:
        self.chat = chat
        self.completion = ChatReader()
        self.items: list[AnswerItem] = []
        self.calls: dict[int, AnswerItem] = {}
        """The calls among the items, by their number in the chat completion."""
        self._open: AnswerItem | None = None

    @abstractmethod
    def begin(self) -> list[Json]:
        """Return the events before the first item, once."""

    @abstractmethod
    def new_item(self, kind: ItemKind, call: CallDelta | None) -> AnswerItem:
        """Return the next item."""

    def take(self, body: Json) -> list[Json]:
        """Read a chat completion or a chunk of one; return the events that report it.

        Raises:
            UnavailableError: an upstream went on with a tool call after it had begun another item, or sent too many.
        """
        delta = self.completion.take(body)
        events = self.begin()
        if delta.reasoning:
            events += self._add_text("reasoning", delta.reasoning)
        self.read_logprobs(delta.logprobs)
        if delta.text:
            events += self._add_text("text", delta.text)
        for part in delta.calls:
            call = self.calls.get(part.index)
            if call is None:
                events += self.add_item("call", part)
                call = self.calls[part.index] = self.items[-1]
            elif call is not self._open:
                raise UnavailableError("the model's server mixed the parts of several tool calls")
            events += call.add(part.arguments)
        return events

    def read_logprobs(self, entries: Sequence[Json]) -> None:  # noqa: B027  # most dialects report none
        """Take entries of `logprobs.content`, which belong to the next text."""

    def _add_text(self, kind: ItemKind, text: str) -> list[Json]:
        events = [] if self._open is not None and self._open.kind == kind else self.add_item(kind)
        return events + self.items[-1].add(text)

    def add_item(self, kind: ItemKind, call: CallDelta | None = None) -> list[Json]:
        """Close the open item and open the next one; return the events.

        Raises:
            UnavailableError: there are too many items.
        """
        if len(self.items) == _MOST_ITEMS:
            raise UnavailableError(f"the model's server went back and forth between more than {_MOST_ITEMS} parts")
        events = self.close_item("completed")
        self._open = self.new_item(kind, call)
        self.items.append(self._open)
        return events + self._open.begin()

    def close_item(self, status: str) -> list[Json]:
        """Close the open item, if there is one; return the events."""
        item, self._open = self._open, None
        return [] if item is None else item.end(status)
