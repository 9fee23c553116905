"""The store contract over HTTP: the requests for the methods of `LightningStore`, for server and client.

JSON is that of Python's `json`, with infinities and NaN. A failure has a status of 400 or above and the body
`{"detail": text, "error_type": name}`.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Any, Final, Literal, Union, cast, get_args, get_origin, get_type_hints, is_typeddict
from urllib.parse import quote, unquote

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, create_model

from ...types import AttemptedRollout, PaginatedResult, Rollout
from ..base import UNSET, LightningStore, Unset
from .wire_json import AT_ONCE, NAMED_AT_ONCE, decode, encode, given, read_fields, read_json, read_named

PREFIX: Final = "/v1/agl"
HEALTH: Final = f"{PREFIX}/health"
TRACES: Final = "/v1/traces"
METRICS: Final = "/metrics"
KEY_HEADER: Final = "idempotency-key"
"""A request that changes something carries a key; sent again with the same key, it is carried out once."""

HOLD_SECONDS: Final = 25.0
"""Longest time that a request waits; the client asks again to wait longer."""

_OLDER_NAMES: Final = {"status": "status_in", "rollout_ids": "rollout_id_in"}
_OF_64_BITS: Final = Field(ge=-(2**63), lt=2**63)
_UP_TO_THE_FIRST_ERROR: Final = Field(fail_fast=True)


def _without_attempt(fields: Any) -> Any:
    if isinstance(fields, dict) and fields.get("attempt") is not None:
        raise ValueError("its attempt is not well formed")
    return fields


_ANY_ROLLOUT: Final = Annotated[
    AttemptedRollout | Annotated[Rollout, BeforeValidator(_without_attempt)], Field(union_mode="left_to_right")
]


@dataclass(frozen=True)
class Route:
    """One request and the method that answers it."""

    method: Literal["GET", "POST"]
    path: str
    """Below the prefix of all routes; a part in braces is an argument."""
    call: str
    """Name of the method of `LightningStore`."""
    status: int = 200
    """HTTP status of a successful response."""
    changes: bool = False
    """True if the request changes the store, so that it needs an idempotency key."""
    waits: bool = False
    """True if it waits for an event, up to its argument `timeout`."""
    body: str | None = None
    """The argument that is the whole body; None if arguments are fields of the body."""
    answer: Literal["result", "sequence_id", "positions"] = "result"
    """Form of the response. `sequence_id`: an object with this field. `positions`: indexes of the stored spans."""

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The path, cut at its slashes."""
        return tuple(self.path.split("/"))

    @cached_property
    def in_path(self) -> frozenset[str]:
        """Names of the arguments in the path."""
        return frozenset(part[1:-1] for part in self.parts if part.startswith("{"))

    @cached_property
    def signature(self) -> inspect.Signature:
        """The signature of the method."""
        return inspect.signature(getattr(LightningStore, self.call))

    @cached_property
    def hints(self) -> dict[str, Any]:
        """Types of the arguments and of the result (`return`) of the method."""
        return get_type_hints(getattr(LightningStore, self.call))

    @cached_property
    def older_names(self) -> dict[str, str]:
        """Older names of arguments, with the names on the wire."""
        known = self.signature.parameters
        return {old: new for old, new in _OLDER_NAMES.items() if old in known and new in known}

    @cached_property
    def request(self) -> type[BaseModel] | None:
        """Model of the body, or of the query string of a GET; None if there are no such fields."""
        fields: dict[str, Any] = {}
        for name, parameter in self.signature.parameters.items():
            if name == "self" or name == self.body or name in self.in_path or name in self.older_names:
                continue
            required = parameter.default is inspect.Parameter.empty
            default = None if parameter.default is UNSET else parameter.default
            fields[name] = (_on_wire(self.hints[name]), Field(... if required else default))
        words = "".join(word.title() for word in self.call.split("_"))
        return create_model(f"{words}Request", **fields) if fields else None

    @cached_property
    def reader(self) -> TypeAdapter[Any]:
        """Reads the body: `request`, or the argument that is the whole body."""
        return TypeAdapter(self.request or BaseModel if self.body is None else _on_wire(self.hints[self.body]))

    @cached_property
    def result(self) -> TypeAdapter[Any]:
        """Reads the response."""
        if self.answer == "sequence_id":
            return TypeAdapter(dict[Literal["sequence_id"], int])
        if self.answer == "positions":
            return TypeAdapter(list[int])
        return TypeAdapter(_on_wire(self.hints["return"]))

    @cached_property
    def pages(self) -> bool:
        """True if the result is a page of what the store holds."""
        result = self.hints["return"]
        return isinstance(result, type) and issubclass(result, PaginatedResult)

    @cached_property
    def repeated(self) -> frozenset[str]:
        """Names of the arguments that a query string may hold several times."""
        fields = {} if self.request is None else self.request.model_fields
        return frozenset(name for name, field in fields.items() if _is_list(field.annotation))

    # The client's side.

    def arguments_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call of the method, by their names on the wire."""
        given = self.signature.bind(None, *args, **kwargs).arguments
        values = {name: value for name, value in given.items() if name != "self" and value is not UNSET}
        for old, new in self.older_names.items():
            value = values.pop(old, None)
            if values.get(new) is None and value is not None:
                values[new] = value
        return values

    def path_of(self, arguments: Mapping[str, Any]) -> str:
        """Return the path of the request, below the prefix of all routes."""
        parts = [quote(str(arguments[part[1:-1]]), safe="") if part.startswith("{") else part for part in self.parts]
        # a client would take dots alone for steps between folders
        return "/".join(part.replace(".", "%2E") if part in (".", "..") else part for part in parts)

    def query_of(self, arguments: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return the query string of a GET, as pairs."""
        pairs: list[tuple[str, str]] = []
        for name, value in arguments.items():
            if name not in self.in_path and value is not None:
                pairs.extend((name, str(item)) for item in (value if name in self.repeated else (value,)))
        return pairs

    def body_of(self, arguments: Mapping[str, Any]) -> bytes:
        """Return the body of a POST.

        Raises:
            ValueError: an argument cannot be expressed as JSON; the message names it.
        """
        if self.body is not None:
            return encode(arguments[self.body], self.body)
        fields = {name: value for name, value in arguments.items() if name not in self.in_path}
        return encode(fields, "")

    def result_of(self, answer: bytes, arguments: Mapping[str, Any]) -> Any:
        """Return the result of the method, from the body of the response.

        Raises:
            ValueError: that is no response to this request.
        """
        value = decode(answer, self.result)
        if self.answer == "sequence_id":
            return value["sequence_id"]
        if self.answer == "positions":
            spans = list(arguments["spans"])
            return [spans[position] for position in value]
        if isinstance(value, PaginatedResult):
            return PaginatedResult.model_construct(**vars(value))
        return value

    # The server's side.

    def arguments_from(self, ids: Mapping[str, str], query: Iterable[tuple[str, str]], body: bytes) -> dict[str, Any]:
        """Return the keyword arguments of the method, from a request.

        Args:
            ids: The arguments in the path.
            query: The query string, as pairs.
            body: The body; it may be empty if no argument is required.

        Raises:
            pydantic.ValidationError: the arguments do not fit the method.
        """
        arguments: dict[str, Any] = dict(ids)
        large = len(body) > AT_ONCE
        if self.body is not None:
            if len(body) > NAMED_AT_ONCE and get_origin(self.hints[self.body]) is dict:
                arguments[self.body] = read_named(body, self.reader)
            elif large:
                arguments[self.body] = self.reader.validate_python(read_json(body))
            else:
                arguments[self.body] = decode(body, self.reader)
        elif self.request is not None and self.method == "GET":
            values: dict[str, Any] = {}
            for name, value in query:
                if name in self.repeated:
                    values.setdefault(name, []).append(value)
                else:
                    values[name] = value
            arguments |= given(self.request.model_validate(values))
        elif self.request is not None and large:
            arguments |= read_fields(body, self.reader, self.repeated)
        elif self.request is not None:
            arguments |= given(decode(b"{}" if body in (b"", b"null") else body, self.reader))
        return arguments

    def held(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a waiting method, with a timeout of at most `HOLD_SECONDS`.

        Raises:
            ValueError: the timeout is not a number.
        """
        timeout = arguments.get("timeout")
        if timeout is None:
            return {**arguments, "timeout": HOLD_SECONDS}
        if math.isnan(timeout):
            raise ValueError("timeout=nan: expected a number of seconds")
        return {**arguments, "timeout": min(timeout, HOLD_SECONDS)}

    def answer_of(self, result: Any, arguments: Mapping[str, Any]) -> bytes:
        """Return the body of the response, from the result of the method.

        Raises:
            ValueError: the result cannot be expressed as JSON; the message names it.
        """
        if self.answer == "sequence_id":
            return encode({"sequence_id": result}, "")
        if self.answer == "positions":
            return encode(_positions(arguments["spans"], result), "")
        if isinstance(result, PaginatedResult):
            rest = encode({"limit": result.limit, "offset": result.offset, "total": result.total}, "")
            return b'{"items":' + encode(result.items, "") + b"," + rest[1:]
        return encode(result, "")


def _positions(sent: Sequence[Any], stored: Sequence[Any]) -> list[int]:
    """Return the indexes of the stored spans in `sent`; of two spans with the same ids the first counts."""
    ids = {(span.rollout_id, span.attempt_id, span.span_id) for span in stored}
    positions = []
    for position, span in enumerate(sent):
        known = (span.rollout_id, span.attempt_id, span.span_id)
        if known in ids:
            ids.discard(known)
            positions.append(position)
    return positions


def _is_list(hint: Any) -> bool:
    return get_origin(hint) is list or any(_is_list(argument) for argument in get_args(hint))


def _on_wire(hint: Any) -> Any:
    """Return the type that reads a type of the contract from JSON."""
    if hint is Rollout:
        return _ANY_ROLLOUT
    if hint is int:
        return Annotated[int, _OF_64_BITS]
    if is_typeddict(hint):
        return dict[str, Any]
    if isinstance(hint, type) and issubclass(hint, PaginatedResult):
        item = hint.__pydantic_generic_metadata__["args"][0]
        return PaginatedResult[_on_wire(item)]  # type: ignore[misc]  # a type that is only known when it runs
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        # `Union[...]`, because `|` does not work for every type object
        return Union[tuple(_on_wire(argument) for argument in arguments if argument is not Unset)]  # noqa: UP007
    if origin in (Sequence, list):
        return Annotated[cast(Any, list)[_on_wire(arguments[0])], _UP_TO_THE_FIRST_ERROR]
    return hint


ROUTES: Final = (
    Route("GET", "statistics", "statistics"),
    Route("POST", "queues/rollouts/enqueue", "enqueue_many_rollouts", status=201, changes=True),
    Route("POST", "queues/rollouts/dequeue", "dequeue_many_rollouts", changes=True),
    Route("POST", "rollouts", "start_rollout", status=201, changes=True),
    Route("POST", "rollouts/search", "query_rollouts"),
    Route("GET", "rollouts", "query_rollouts"),
    Route("POST", "rollouts/delete", "delete_rollouts", changes=True),
    Route("POST", "listings/rollouts", "list_rollouts"),
    Route("POST", "listings/groups", "list_groups"),
    Route("GET", "rollouts/{rollout_id}", "get_rollout_by_id"),
    Route("POST", "rollouts/{rollout_id}", "update_rollout", changes=True),
    Route("POST", "rollouts/{rollout_id}/attempts", "start_attempt", status=201, changes=True),
    Route("POST", "rollouts/{rollout_id}/attempts/search", "query_attempts"),
    Route("GET", "rollouts/{rollout_id}/attempts", "query_attempts"),
    Route("GET", "rollouts/{rollout_id}/attempts/latest", "get_latest_attempt"),
    Route("POST", "rollouts/{rollout_id}/attempts/{attempt_id}", "update_attempt", changes=True),
    Route("POST", "workers/search", "query_workers"),
    Route("GET", "workers", "query_workers"),
    Route("GET", "workers/{worker_id}", "get_worker_by_id"),
    Route("POST", "workers/{worker_id}", "update_worker", changes=True),
    Route("POST", "heartbeats", "update_many_workers", changes=True, body="heartbeats"),
    Route("POST", "resources", "add_resources", status=201, changes=True, body="resources"),
    Route("GET", "resources", "query_resources"),
    Route("GET", "resources/latest", "get_latest_resources"),
    Route("GET", "resources/{resources_id}", "get_resources_by_id"),
    Route("POST", "resources/{resources_id}", "update_resources", changes=True, body="resources"),
    Route("POST", "spans", "add_span", status=201, changes=True, body="span"),
    Route("POST", "spans/batch", "add_many_spans", status=201, changes=True, answer="positions"),
    Route("POST", "spans/search", "query_spans"),
    Route("GET", "spans", "query_spans"),
    Route("POST", "spans/next", "get_next_span_sequence_id", changes=True, answer="sequence_id"),
    Route("POST", "spans/next/batch", "get_many_span_sequence_ids", changes=True),
    Route("POST", "waits/rollouts", "wait_for_rollouts", waits=True),
    Route("POST", "waits/work", "wait_for_work", waits=True),
)
"""Of two routes that fit one path, the first counts. A client sends the first route of a method. `spans/batch`,
`spans/next/batch`, `rollouts/delete`, `listings/…`, `heartbeats` and `waits/work` are our own; the others are
agent-lightning's."""


def route_of(call: str) -> Route:
    """Return the route by which a client calls a method."""
    return next(route for route in ROUTES if route.call == call)


def find(method: str, path: str) -> tuple[Route, dict[str, str]] | None:
    """Return the route of a request and its ids; `path` is below `PREFIX`, with its percent escapes."""
    parts = path.split("/")
    for route in _candidates(method, len(parts)):
        ids: dict[str, str] = {}
        for wanted, part in zip(route.parts, parts, strict=True):
            if wanted.startswith("{"):
                ids[wanted[1:-1]] = unquote(part)
            elif wanted != part:
                break
        else:
            return route, ids
    return None


@lru_cache
def _candidates(method: str, parts: int) -> tuple[Route, ...]:
    return tuple(route for route in ROUTES if route.method == method and len(route.parts) == parts)
