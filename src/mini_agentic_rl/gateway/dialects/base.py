"""A dialect: a wire format that agents speak, over the one form that is served inside, OpenAI's chat completions.

A request becomes the body of a chat request; its answer, whole or chunk by chunk, goes back in the dialect's own shape.
Both gateways, the one over a policy and the one over upstreams, serve every dialect so.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from inspect import isclass
from typing import Any, ClassVar, Final, Protocol, TypeAlias, get_args

from ...http import ANYBODY, Body, HttpError, encode
from .parameters import unknown_fields

Json: TypeAlias = dict[str, Any]
CallScope: TypeAlias = tuple[str, str] | None
"""(rollout id, attempt id) of the rollout that a call belongs to; None for a call outside of any."""

MOST_ITEMS: Final = 1000
"""Most parts (text, thinking, calls) of one answer in the dialects that have such."""


class Exchange(Protocol):
    """One request and its answer, both in the dialect and as chat completions."""

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
    counts_first: ClassVar[bool] = False
    """True if the first event of its streams tells how many tokens the prompt has."""
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
        found = unknown_fields(body, {*known, *self.further})
        for name, field in known.items():
            inner = {one.alias or key for kind in _bodies(field.annotation) for key, one in kind.model_fields.items()}
            value = body.get(name)
            if inner and isinstance(value, dict):
                found += [f"{name}.{key}" for key in value if key not in inner and value[key] is not None]
        tools = body.get("tools")
        kinds = [tool.get("type") for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
        return [*found, *(f"tools[{at}] ({kind})" for at, kind in enumerate(kinds) if kind not in self.tool_kinds)]

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
    told = re.sub(r"\[\]", lambda _: next(indices), names[field])
    path, _, rest = error.message.partition(":")
    message = f"{told}:{rest}" if path in (field, error.param) else error.message
    new = HttpError(message, param=told, code=error.code, kind=error.kind)
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
