"""The collections of the MongoDB store, their indexes and version, and `Query` as a filter and an order.

Every document has an integer `_id`, which orders its collection as things were stored, and fields named as the columns
of the SQL store; texts named `*_json` hold JSON, so that whatever was stored comes back exactly. `queue_position` is
null outside of the queue, `deadline` is null for an attempt that no limit can end, `latest_attempt` of a rollout is
the `_id` of its latest attempt.

The collection of the state holds two documents. One has the schema version. The other is the lock: whoever writes,
changes it first (`turn`), so that of two transactions at once the server refuses one. It has the last number given out
in every collection, which with the number of those deleted tells how many documents there are; the end of the queue;
and in `news` the process that last changed something for which others may wait.
"""

from __future__ import annotations

from typing import Any, Final

from pymongo import ASCENDING, DESCENDING, IndexModel
from pymongo.database import Database
from pymongo.errors import DuplicateKeyError

from ...store.base import LightningStoreError
from ...store.tables import Condition, Kind, Query

SCHEMA_VERSION: Final = 1

STATE: Final = "agl_state"
ROLLOUTS: Final = "agl_rollouts"
ATTEMPTS: Final = "agl_attempts"
SPANS: Final = "agl_spans"
RESOURCES: Final = "agl_resources"
WORKERS: Final = "agl_workers"
OUTCOMES: Final = "agl_outcomes"
"""What writes made, under their idempotency keys; MongoDB deletes a document after its time."""
_OUTCOME_SECONDS: Final = 3600

THE_SCHEMA: Final = {"_id": "schema"}
THE_LOCK: Final = {"_id": "lock"}
DELETED: Final = {ROLLOUTS: "deleted_rollouts", ATTEMPTS: "deleted_attempts", SPANS: "deleted_spans"}
"""Fields of the lock with the number of documents that were deleted, by the names of their collections."""
COUNTERS: Final = (
    *(ROLLOUTS, ATTEMPTS, SPANS, RESOURCES, WORKERS, "queue_end", "resource_writes"),
    *DELETED.values(),
)
"""Fields of the lock that count up from 0."""

_INDEXES: Final[dict[str, list[IndexModel]]] = {
    ROLLOUTS: [
        IndexModel([("rollout_id", ASCENDING)], unique=True),
        IndexModel([("status", ASCENDING), ("_id", ASCENDING)]),
        IndexModel([("status", ASCENDING), ("end_time", DESCENDING), ("_id", ASCENDING)]),
        IndexModel([("queue_position", ASCENDING)], partialFilterExpression={"queue_position": {"$gt": 0}}),
    ],
    ATTEMPTS: [
        IndexModel([("rollout_id", ASCENDING), ("attempt_id", ASCENDING)], unique=True),
        IndexModel([("rollout_id", ASCENDING), ("sequence_id", ASCENDING)], unique=True),
        IndexModel([("deadline", ASCENDING)], partialFilterExpression={"deadline": {"$gt": 0}}),
    ],
    SPANS: [
        IndexModel([("rollout_id", ASCENDING), ("attempt_id", ASCENDING), ("span_id", ASCENDING)], unique=True),
        IndexModel([("rollout_id", ASCENDING), ("sequence_id", ASCENDING), ("_id", ASCENDING)]),
        IndexModel(
            [("rollout_id", ASCENDING), ("attempt_id", ASCENDING), ("sequence_id", ASCENDING), ("_id", ASCENDING)]
        ),
    ],
    RESOURCES: [
        IndexModel([("resources_id", ASCENDING)], unique=True),
        IndexModel([("write_number", DESCENDING)]),
    ],
    WORKERS: [IndexModel([("worker_id", ASCENDING)], unique=True)],
    OUTCOMES: [IndexModel([("time", ASCENDING)], expireAfterSeconds=_OUTCOME_SECONDS)],
}


def require_transactions(hello: dict[str, Any], name: str) -> None:
    """Refuse a server that has no transactions, by its answer to the command `hello`.

    Raises:
        LightningStoreError: it is a standalone server.
    """
    if "setName" not in hello and hello.get("msg") != "isdbgrid":
        raise LightningStoreError(
            f"the store {name}: the MongoDB server is a standalone one, which has no transactions; "
            "start it as a replica set, which may have one member: mongod --replSet rs0, and then, once, "
            "mongosh --eval 'rs.initiate()'"
        )


def prepare(database: Database[Any], name: str) -> None:
    """Create collections and indexes in a database that has none of ours, or check their version.

    Several processes may do this at once. Collections of other programs in the database are left alone.

    Raises:
        LightningStoreError: the database holds a store of another version.
    """
    state = database[STATE]
    schema = state.find_one(THE_SCHEMA)
    for collection, indexes in _INDEXES.items():  # those that are there already cost nothing
        database[collection].create_indexes(indexes)
    if schema is None:
        _insert_once(database, THE_LOCK | {"turn": 0, "news": ""} | dict.fromkeys(COUNTERS, 0))
        _insert_once(database, THE_SCHEMA | {"version": SCHEMA_VERSION})
        schema = state.find_one(THE_SCHEMA)
    version = None if schema is None else schema["version"]
    if version != SCHEMA_VERSION:
        raise LightningStoreError(
            f"the store {name} has schema version {version}, this program reads version {SCHEMA_VERSION}: "
            "use the program that wrote it, or choose another database"
        )


def _insert_once(database: Database[Any], document: dict[str, Any]) -> None:
    try:
        database[STATE].insert_one(document)
    except DuplicateKeyError:  # another process was faster
        return


COLLECTION_OF: Final[dict[Kind, str]] = {
    "rollout": ROLLOUTS,
    "attempt": ATTEMPTS,
    "span": SPANS,
    "resources": RESOURCES,
    "worker": WORKERS,
}


def filter_of(query: Query) -> dict[str, Any]:
    """Return what the documents of a query have to match; empty for all of them."""
    tests = [_test(condition) for condition in query.scope]
    filters = [_test(condition) for condition in query.filters]
    if query.logic == "and":
        tests += filters
    elif filters:
        tests.append({"$or": filters})
    return {"$and": tests} if tests else {}


def sort_of(query: Query) -> list[tuple[str, int]]:
    """Return the order of a query; equal documents come as they were stored.

    MongoDB compares texts by their bytes in UTF-8, which is the order of their code points, and sorts null before
    everything else, as the contract of `Query` demands.
    """
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
