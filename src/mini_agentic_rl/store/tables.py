"""The tables of a store, which each backend implements: reads and writes, queries as data, and rows of a database.

The rules are in `ledger.py` and `lifecycle.py`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar

import pydantic_core
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from ..types import Attempt, PaginatedResult, ResourcesUpdate, Rollout, RolloutConfig, Span, Worker
from .base import LightningStoreError, LightningStoreStatistics
from .lifecycle import construct
from .listing import GroupPage, RolloutFilter, RolloutPage, step_and_group, stored_reward

T = TypeVar("T")

Kind = Literal["rollout", "attempt", "span", "resources", "worker"]

MOST_OUTCOMES: Final = 32_768
"""Approximate number of outcomes of writes that are kept for retries."""


class Tables(Protocol):
    """Tables of one backend, in one transaction.

    An implementation knows only these rules: a rollout is in the queue while its status is `queuing` or `requeuing`,
    and enters at the end; the attempt that was inserted last is the latest.
    """

    def rollout(self, rollout_id: str) -> tuple[Rollout, Attempt | None] | None:
        """Return the rollout and its latest attempt."""

    def queued(self, limit: int) -> Sequence[tuple[Rollout, Attempt | None]]:
        """Return the first rollouts of the queue and their latest attempts, without removing them."""

    def has_queued(self) -> bool:
        """Return True if the queue is not empty."""

    def insert_rollouts(self, rollouts: Sequence[Rollout]) -> None:
        """Add new rollouts, in this order."""

    def replace_rollout(self, old: Rollout, new: Rollout) -> None:
        """Store the new state of a rollout."""

    def delete_spans(self, rollout_id: str, limit: int) -> int:
        """Delete at most `limit` spans of a rollout and return how many, where `delete_rollout` takes long for many."""

    def delete_rollout(self, rollout_id: str) -> None:
        """Delete a rollout with its attempts and spans."""

    def attempt(self, rollout_id: str, attempt_id: str) -> Attempt | None:
        """Return one attempt of a rollout."""

    def insert_attempt(self, attempt: Attempt, deadline: float | None) -> None:
        """Add the next attempt of a rollout. Its span sequence ids continue those of the earlier attempts."""

    def replace_attempt(self, attempt: Attempt, deadline: float | None) -> None:
        """Store the new state of an attempt."""

    def overdue(self, now: float, limit: int) -> Sequence[tuple[str, str]]:
        """Return (rollout id, attempt id) of at most `limit` attempts past their deadline."""

    def next_deadline(self) -> float | None:
        """Return a time before which no attempt passes its deadline, or None if there is no deadline."""

    def take_span_numbers(self, rollout_id: str, attempt_id: str, count: int) -> int | None:
        """Take the next `count` sequence ids of an attempt and return the first; None if there is no such attempt."""

    def insert_spans(self, rollout_id: str, attempt_id: str, spans: Sequence[Span]) -> Sequence[Span]:
        """Add spans of one attempt and return those with a new span id. Later sequence ids are greater than theirs."""

    def latest_resources(self) -> ResourcesUpdate | None:
        """Return the set of resources that was written last."""

    def resources(self, resources_id: str) -> ResourcesUpdate | None:
        """Return one set of resources."""

    def write_resources(self, update: ResourcesUpdate) -> None:
        """Add or replace a set of resources; it becomes the latest."""

    def worker(self, worker_id: str) -> Worker | None:
        """Return one worker."""

    def write_worker(self, worker: Worker) -> None:
        """Add or replace a worker."""

    def select(self, query: Query) -> PaginatedResult[Any]:
        """Return one page of rollouts (with their latest attempts), attempts, spans, resources or workers."""

    def handles(self, query: Query) -> PaginatedResult[Any]:
        """Return a page with a small handle in place of each item; `items` returns the items of handles."""

    def items(self, kind: Kind, handles: Sequence[Any]) -> list[Any]:
        """Return the current items of some handles, in this order, without items deleted since."""

    def list_rollouts(self, wanted: RolloutFilter, before: int | None, limit: int) -> RolloutPage:
        """Return a page of the rollouts that match, after a look at `wanted.max_examined` rollouts at most."""

    def list_groups(self, before: int | None, limit: int) -> GroupPage:
        """Return a page of groups."""

    def ended(self, rollout_ids: Sequence[str]) -> tuple[Sequence[Rollout], Sequence[str]]:
        """Return the rollouts that have ended, in the order given, and the unknown ids."""

    def counts(self) -> LightningStoreStatistics:
        """Return the totals of the statistics."""

    def outcome(self, key: str) -> str | None:
        """Return the outcome of the write with this idempotency key; None if it is not among the kept ones."""

    def keep_outcome(self, key: str, outcome: str) -> None:
        """Keep the outcome of a write, and forget the oldest beyond `MOST_OUTCOMES`."""


MODELS: Final[dict[Kind, type[BaseModel]]] = {
    "rollout": Rollout,
    "attempt": Attempt,
    "span": Span,
    "resources": ResourcesUpdate,
    "worker": Worker,
}
IDS: Final[dict[Kind, tuple[str, ...]]] = {
    "rollout": ("rollout_id",),
    "attempt": ("rollout_id", "attempt_id"),
    "span": ("rollout_id", "attempt_id", "span_id"),
    "resources": ("resources_id",),
    "worker": ("worker_id",),
}
"""Fields that together identify an object."""
_JSON_FIELDS: Final[dict[Kind, tuple[str, ...]]] = {
    "rollout": ("input", "config", "metadata"),
    "attempt": ("metadata",),
    "span": ("status", "attributes", "events", "links", "context", "parent", "resource"),
    "resources": ("resources",),
    "worker": ("heartbeat_stats",),
}
"""Fields that databases keep as JSON, each in a column `FIELD_json`; those of a span together in `body_json`, with any
further fields."""
SORTABLE: Final[dict[Kind, tuple[str, ...]]] = {
    kind: tuple(name for name in model.model_fields if name not in _JSON_FIELDS[kind]) for kind, model in MODELS.items()
}
"""Fields by which `sort_by` may order; databases have a column of the same name for each."""
_SPAN_COLUMNS: Final = set(SORTABLE["span"])


@dataclass(frozen=True)
class Condition:
    """Test of one field."""

    field: str
    test: Literal["equals", "contains", "one_of"]
    value: Any

    def holds(self, item: object) -> bool:
        """Return True if `item` passes."""
        actual = getattr(item, self.field)
        if self.test == "equals":
            return bool(actual == self.value)
        if self.test == "contains":
            return actual is not None and self.value in actual
        return actual in self._values

    @cached_property
    def _values(self) -> frozenset[Any]:
        return frozenset(self.value)


@dataclass(frozen=True)
class Query:
    """Filters, order and page of a query. `page` evaluates it on objects; a database translates it.

    Comparisons are exact and case-sensitive. In ascending order None comes first. Equal items keep the order in which
    they were stored, in both directions.
    """

    kind: Kind
    scope: tuple[Condition, ...] = ()
    """Conditions that always apply, whatever `logic` is."""
    filters: tuple[Condition, ...] = ()
    logic: Literal["and", "or"] = "and"
    sort_by: str | None = None
    sort_order: Literal["asc", "desc"] = "asc"
    limit: int = -1
    """-1 means no limit."""
    offset: int = 0

    def __post_init__(self) -> None:
        if self.sort_by is not None and self.sort_by not in SORTABLE[self.kind]:
            raise ValueError(f"sort_by={self.sort_by!r}: expected one of {', '.join(SORTABLE[self.kind])}")
        if self.sort_order not in ("asc", "desc"):
            raise ValueError(f"sort_order={self.sort_order!r}: expected 'asc' or 'desc'")
        if self.logic not in ("and", "or"):
            raise ValueError(f"filter_logic={self.logic!r}: expected 'and' or 'or'")
        if self.limit < -1:
            raise ValueError(f"limit={self.limit}: expected -1 (no limit) or a count")
        if self.offset < 0:
            raise ValueError(f"offset={self.offset}: expected a count")

    def required(self, field: str) -> Sequence[Any] | None:
        """Return the only values that `field` may have, to use an index; None if it may have any."""
        for condition in (*self.scope, *(self.filters if self.logic == "and" or len(self.filters) == 1 else ())):
            if condition.field == field and condition.test == "equals":
                return (condition.value,)
            if condition.field == field and condition.test == "one_of":
                return tuple(condition.value)
        return None

    def page(self, candidates: Iterable[T], key: Callable[[T], object] = lambda item: item) -> PaginatedResult[T]:
        """Return the page of candidates in stored order; `key` returns the object with the fields."""
        matching = [item for item in candidates if self._matches(key(item))]
        if self.sort_by is not None:
            field = self.sort_by

            def place(item: T) -> tuple[bool, Any]:
                value = getattr(key(item), field)
                return (False, 0) if value is None else (True, value)

            matching.sort(key=place, reverse=self.sort_order == "desc")
        elif self.sort_order == "desc":
            matching.reverse()
        return self.page_of(matching, len(matching))

    def page_of(self, ordered: Iterable[T], total: int) -> PaginatedResult[T]:
        """Return the page of `total` matching items that are in the order of the query."""
        end = None if self.limit == -1 else self.offset + self.limit
        items = list(islice(ordered, self.offset, end))
        return PaginatedResult.model_construct(items=items, limit=self.limit, offset=self.offset, total=total)

    def _matches(self, item: object) -> bool:
        for condition in self.scope:
            if not condition.holds(item):
                return False
        if not self.filters:
            return True
        combine = all if self.logic == "and" else any
        return combine(condition.holds(item) for condition in self.filters)


def conditions(arguments: dict[str, Any]) -> tuple[Condition, ...]:
    """Build conditions from arguments of a query: `FIELD`, `FIELD_contains` or `FIELD_in`; None is no condition."""
    built = []
    for name, value in arguments.items():
        if value is None:
            continue
        if name.endswith("_in"):
            built.append(Condition(name.removesuffix("_in"), "one_of", tuple(value)))
        elif name.endswith("_contains"):
            built.append(Condition(name.removesuffix("_contains"), "contains", value))
        else:
            built.append(Condition(name, "equals", value))
    return tuple(built)


logger = logging.getLogger(__name__)

_ENCODER: Final = json.JSONEncoder(default=to_jsonable_python, separators=(",", ":"))
_ATOMS: Final = {str, int, float, bool, type(None)}
_CONTENT: Final = ("mode", "resources_id", "input", "config", "metadata")
"""Fields of a rollout other than its ids, status and times."""

Row: TypeAlias = Mapping[str, Any]
"""Columns of a row that was read."""
Values: TypeAlias = dict[str, Any]
"""Columns of a row to be written."""


class DamagedRowError(LightningStoreError):
    """A row of the database is not what a store has written."""


def readable(make: Callable[[Row], T], rows: Iterable[Row], on_damage: Callable[[Row], None] | None = None) -> list[T]:
    """Return the objects of rows; a damaged row is logged and left out.

    Args:
        make: Returns the object of a row.
        rows: The rows.
        on_damage: Called with each damaged row.
    """
    objects = []
    for row in rows:
        try:
            objects.append(make(row))
        except DamagedRowError as error:
            logger.error("%s; it is left out", error)
            if on_damage is not None:
                on_damage(row)
    return objects


def to_json(value: Any) -> str:
    """Encode as JSON text, from which numbers (also infinities and NaN) and texts are read back exactly.

    Raises:
        ValueError: the value cannot be expressed as JSON.
    """
    with suppress(ValueError, RecursionError):  # half of a surrogate pair, or a list that contains itself
        if _is_plain(value):
            return pydantic_core.to_json(value, inf_nan_mode="constants").decode()
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a database keeps tasks, metadata and spans as JSON: {error}") from error


def _is_plain(value: Any) -> bool:
    """Return True if a value contains only types of JSON: Pydantic's encoder is faster, up to nine times for numbers,
    but writes infinities in models as null and accepts keys that are no text."""
    if type(value) is dict:
        return set(map(type, value)) <= {str} and all(map(_is_plain, value.values()))
    if type(value) is list or type(value) is tuple:
        return set(map(type, value)) <= _ATOMS or all(map(_is_plain, value))
    return type(value) in _ATOMS


def body_json(span: Span) -> str:
    """Return the fields of a span without a column (attributes, events, links, status) as JSON.

    Raises:
        ValueError: they cannot be expressed as JSON.
    """
    return to_json(span.model_dump(exclude=_SPAN_COLUMNS))


def columns_of(kind: Kind, item: BaseModel) -> Values:
    """Return the columns of an object in a database.

    Raises:
        ValueError: a field cannot be expressed as JSON.
    """
    fields = vars(item)
    values: Values = {name: fields[name] for name in SORTABLE[kind]}
    if isinstance(item, Span):
        return values | {"reward": stored_reward(item.name, item.attributes), "body_json": body_json(item)}
    for name in _JSON_FIELDS[kind]:
        value = fields[name]
        if name == "resources":  # as declared, and with its numbers: Pydantic's JSON has none that are not finite
            value = item.model_dump(include={name})[name]
        values[name + "_json"] = value.model_dump_json() if name == "config" else to_json(value)
    if isinstance(item, Rollout):
        values["step"], values["group_id"] = step_and_group(item.metadata)
    return values


def object_of(kind: Kind, row: Row, prefix: str = "") -> Any:
    """Return the object of a row whose column names start with `prefix`.

    Raises:
        DamagedRowError: a column holds what no store has written; the message names the object.
    """
    try:
        values = {name: row[prefix + name] for name in SORTABLE[kind]}
        if kind == "span":
            return Span(**json.loads(row["body_json"]), **values)
        for name in _JSON_FIELDS[kind]:
            text = row[f"{prefix}{name}_json"]
            if name == "config":
                values[name] = RolloutConfig.model_validate_json(text)
            else:
                values[name] = {} if text == "{}" else json.loads(text)
        return ResourcesUpdate(**values) if kind == "resources" else construct(MODELS[kind], values)
    except (ValueError, TypeError) as error:
        names = " ".join(str(row[prefix + name]) for name in IDS[kind])
        reason = str(error).partition("\n")[0]
        raise DamagedRowError(f"the row of the {kind} {names} is damaged in the database ({reason})") from error


def content_changed(old: Rollout, new: Rollout) -> bool:
    """Return True if a field other than the status and the end time was replaced."""
    before, after = vars(old), vars(new)
    return any(after[name] is not before[name] for name in _CONTENT)
