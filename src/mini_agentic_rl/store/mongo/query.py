"""`Query` as a filter and an order of MongoDB.

MongoDB compares texts by their bytes in UTF-8, which is the order of their code points, and sorts null before
everything else, as the contract of `Query` wants it.
"""

from __future__ import annotations

from typing import Any, Final

from pymongo import ASCENDING, DESCENDING

from ..query import Condition, Kind, Query
from .schema import ATTEMPTS, RESOURCES, ROLLOUTS, SPANS, WORKERS

COLLECTION_OF: Final[dict[Kind, str]] = {
    "rollout": ROLLOUTS,
    "attempt": ATTEMPTS,
    "span": SPANS,
    "resources": RESOURCES,
    "worker": WORKERS,
}


def filter_of(query: Query) -> dict[str, Any]:
    """What the documents have to match; empty for all of them."""
    tests = [_test(condition) for condition in query.scope]
    filters = [_test(condition) for condition in query.filters]
    if query.logic == "and":
        tests += filters
    elif filters:
        tests.append({"$or": filters})
    return {"$and": tests} if tests else {}


def sort_of(query: Query) -> list[tuple[str, int]]:
    """The order; equal documents come as they were stored."""
    direction = DESCENDING if query.sort_order == "desc" else ASCENDING
    if query.sort_by is None:
        return [("_id", direction)]
    return [(query.sort_by, direction), ("_id", ASCENDING)]


def _test(condition: Condition) -> dict[str, Any]:
    if condition.test == "equals":
        return {condition.field: {"$eq": condition.value}}
    if condition.test == "one_of":
        return {condition.field: {"$in": list(condition.value)}}
    # the position of the text, null in a field that is null: null is not at least 0
    return {"$expr": {"$gte": [{"$indexOfCP": [f"${condition.field}", {"$literal": condition.value}]}, 0]}}
