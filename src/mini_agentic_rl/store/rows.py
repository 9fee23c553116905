"""Conversion between the objects of a store and the rows or documents of a database."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, wraps
from typing import Any, Final, TypeAlias, TypeVar, cast

import pydantic_core
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python
from typing_extensions import ParamSpec

from ..types import Attempt, NamedResources, ResourcesUpdate, Rollout, RolloutConfig, Span, Worker
from .errors import LightningStoreError
from .lifecycle import construct
from .tables import SORTABLE, Kind

T = TypeVar("T")
P = ParamSpec("P")

logger = logging.getLogger(__name__)

_ENCODER: Final = json.JSONEncoder(default=to_jsonable_python, separators=(",", ":"))
_RESOURCES: Final[TypeAdapter[NamedResources]] = TypeAdapter(NamedResources)
_SPAN_COLUMNS: Final = SORTABLE["span"]
_SPAN_COLUMN_SET: Final = set(_SPAN_COLUMNS)

Row: TypeAlias = Mapping[str, Any]
"""Columns of a row that was read."""
Values: TypeAlias = dict[str, Any]
"""Columns of a row to be written."""


class DamagedRowError(LightningStoreError):
    """A row of the database is not what a store has written."""


def readable(make: Callable[[Row], T], rows: Iterable[Row], on_damage: Callable[[Row], None] | None = None) -> list[T]:
    """Return the objects of rows; one that is damaged is logged and left out.

    Args:
        make: returns the object of a row.
        on_damage: called with each that is left out.
    """
    found = []
    for row in rows:
        try:
            found.append(make(row))
        except DamagedRowError as error:
            logger.error("%s; it is left out", error)
            if on_damage is not None:
                on_damage(row)
    return found


_NAMES: Final[dict[Kind, tuple[str, ...]]] = {
    "rollout": ("rollout_id",),
    "attempt": ("rollout_id", "attempt_id"),
    "span": ("rollout_id", "attempt_id", "span_id"),
    "resources": ("resources_id",),
    "worker": ("worker_id",),
}


def _naming(kind: Kind) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Make a reader of rows tell which row is damaged."""

    def decorate(read: Callable[P, T]) -> Callable[P, T]:
        @wraps(read)
        def named(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return read(*args, **kwargs)
            except (ValueError, TypeError) as error:
                row = cast("Row", args[0])
                names = " ".join(str(row[name]) for name in _NAMES[kind] if name in row)
                reason = str(error).partition("\n")[0]
                raise DamagedRowError(f"the row of the {kind} {names} is damaged in the database ({reason})") from error

        return named

    return decorate


_CONTENT: Final = ("mode", "resources_id", "input", "config", "metadata")


def to_json(value: Any) -> str:
    """Encode as JSON text. Numbers come back exactly, infinities and NaN included, and so does any text.

    Raises:
        ValueError: the value holds something that JSON cannot express.
    """
    if value == {}:
        return "{}"
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError) as error:  # a strange key, a strange object, a circle
        raise ValueError(f"a database keeps tasks, metadata and spans as JSON: {error}") from error


def rollout_columns(rollout: Rollout) -> Values:
    """Return the columns of a rollout."""
    return {
        **{name: getattr(rollout, name) for name in SORTABLE["rollout"]},
        "input_json": to_json(rollout.input),
        "config_json": rollout.config.model_dump_json(),
        "metadata_json": to_json(rollout.metadata),
    }


def content_changed(old: Rollout, new: Rollout) -> bool:
    """Return True if anything but the status and the end of a rollout was replaced."""
    before, after = vars(old), vars(new)
    return any(after[name] is not before[name] for name in _CONTENT)


@_naming("rollout")
def rollout_of(row: Row) -> Rollout:
    """Return the rollout of a row."""
    values = {name: row[name] for name in SORTABLE["rollout"]}
    values["input"] = json.loads(row["input_json"])
    values["config"] = RolloutConfig(**_config(row["config_json"]))
    values["metadata"] = _object(row["metadata_json"])
    return construct(Rollout, values)


@lru_cache(maxsize=64)
def _config(text: str) -> dict[str, Any]:
    """Parse a config; cached, because most rollouts have one of few.

    The result is only read: each rollout makes a config of its own from it.
    """
    config: dict[str, Any] = json.loads(text)
    return config


def _object(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {} if text == "{}" else json.loads(text)
    return found


def attempt_columns(attempt: Attempt) -> Values:
    """Return the columns of an attempt."""
    values = dict(vars(attempt))
    values["metadata_json"] = to_json(values.pop("metadata"))
    return values


@_naming("attempt")
def attempt_of(row: Row, prefix: str = "") -> Attempt:
    """Return the attempt of a row whose column names start with `prefix`."""
    values = {name: row[prefix + name] for name in SORTABLE["attempt"]}
    values["metadata"] = _object(row[prefix + "metadata_json"])
    return construct(Attempt, values)


def span_columns(span: Span) -> Values:
    """Return the columns of a span. What has no column of its own goes into `body_json`."""
    values: Values = {name: getattr(span, name) for name in _SPAN_COLUMNS}
    values["body_json"] = body_json(span)
    return values


def body_json(span: Span) -> str:
    """Return as JSON what of a span has no column of its own: its attributes, events, links and status.

    Raises:
        ValueError: the span holds something that JSON cannot express.
    """
    body = span.model_dump(exclude=_SPAN_COLUMN_SET)
    try:
        return pydantic_core.to_json(body, inf_nan_mode="constants").decode()
    except ValueError:  # text that is not Unicode, which only the slower encoder can write; or not JSON at all
        return to_json(body)


@_naming("span")
def span_of(row: Row) -> Span:
    """Return the span of a row."""
    return Span(**json.loads(row["body_json"]), **{name: row[name] for name in _SPAN_COLUMNS})


def resources_columns(update: ResourcesUpdate) -> Values:
    """Return the columns of a set of resources."""
    values = dict(vars(update))
    values["resources_json"] = to_json(_RESOURCES.dump_python(values.pop("resources")))
    return values


@_naming("resources")
def resources_of(row: Row) -> ResourcesUpdate:
    """Return the set of resources of a row."""
    values = {name: row[name] for name in SORTABLE["resources"]}
    return ResourcesUpdate(**values, resources=json.loads(row["resources_json"]))


def worker_columns(worker: Worker) -> Values:
    """Return the columns of a worker."""
    values = dict(vars(worker))
    values["heartbeat_stats_json"] = to_json(values.pop("heartbeat_stats"))
    return values


@_naming("worker")
def worker_of(row: Row) -> Worker:
    """Return the worker of a row."""
    values = {name: row[name] for name in SORTABLE["worker"]}
    values["heartbeat_stats"] = _object(row["heartbeat_stats_json"])
    return construct(Worker, values)


OBJECT_OF: Final[dict[Kind, Callable[[Row], Any]]] = {
    "attempt": attempt_of,
    "span": span_of,
    "resources": resources_of,
    "worker": worker_of,
}
"""Functions that return the object of a row, for the kinds that have nothing but their row."""
