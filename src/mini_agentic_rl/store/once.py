"""Idempotent writes. A write has a key, and the store keeps the ids of the objects that it made under that key, in the
same transaction.

The objects themselves are not kept here, so deleted content stays deleted. A repeated write returns the objects in
their current state.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from ..types import Attempt, AttemptedRollout, ResourcesUpdate, Rollout, Span, Worker
from . import lifecycle
from .ledger import Ledger
from .tables import Query, Tables, conditions

T = TypeVar("T")

_key: ContextVar[str | None] = ContextVar("key_of_write", default=None)

_IDS: Final[dict[type[Any], tuple[str, ...]]] = {
    Rollout: ("rollout_id",),
    Attempt: ("rollout_id", "attempt_id"),
    Span: ("rollout_id", "attempt_id", "span_id"),
    ResourcesUpdate: ("resources_id",),
    Worker: ("worker_id",),
}


@contextmanager
def carried_out_once(key: str) -> Iterator[None]:
    """Carry out the writes of one call in this context, unless they have been under this key."""
    token = _key.set(key)
    try:
        yield
    finally:
        _key.reset(token)


def once(operation: Callable[[Ledger], T], part: int) -> Callable[[Ledger], T]:
    """Return an operation that looks up what it made where the key of this context has been used.

    Args:
        operation: one transaction.
        part: its number among those of the call.
    """
    key = _key.get()
    if key is None:
        return operation
    key_of_part = f"{part} {key}"

    def run(ledger: Ledger) -> Any:
        known = ledger.tables.outcome(key_of_part)
        if known is not None:
            return _recalled(ledger.tables, json.loads(known))
        result = operation(ledger)
        ledger.tables.keep_outcome(key_of_part, json.dumps(_named(result), separators=(",", ":")))
        return result

    return run


def _named(result: Any) -> Any:
    """Return the ids of a result, as JSON has them."""
    if isinstance(result, list):
        return [_named(one) for one in result]
    if isinstance(result, AttemptedRollout):
        return {"AttemptedRollout": [result.rollout_id, result.attempt.attempt_id]}
    for kind, ids in _IDS.items():
        if isinstance(result, kind):
            return {kind.__name__: [getattr(result, name) for name in ids]}
    return result


def _recalled(tables: Tables, named: Any) -> Any:
    """Return the result that has these ids, without what was deleted since.

    Raises:
        ValueError: the whole was.
    """
    if isinstance(named, list):
        found = [_found(tables, *one.popitem()) if isinstance(one, dict) else one for one in named]
        return [one for one in found if one is not None]
    if not isinstance(named, dict):
        return named
    ((kind, ids),) = named.items()
    one = _found(tables, kind, ids)
    if one is None:
        raise ValueError(f"no {kind} {' '.join(ids)}: it was deleted after this request had been carried out")
    return one


def _found(tables: Tables, kind: str, ids: list[str]) -> Any:
    if kind == "ResourcesUpdate":
        return tables.resources(*ids)
    if kind == "Worker":
        return tables.worker(*ids)
    if kind == "Attempt":
        return tables.attempt(*ids)
    if kind == "Span":
        found = tables.select(Query("span", conditions(dict(zip(_IDS[Span], ids, strict=True))))).items
        return found[0] if found else None
    rollout = tables.rollout(ids[0])
    if rollout is None or kind == "Rollout":
        return rollout and rollout[0]
    return lifecycle.with_attempt(rollout[0], tables.attempt(*ids))
