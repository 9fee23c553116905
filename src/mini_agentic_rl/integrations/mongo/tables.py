"""Tables in MongoDB: every method is one or two commands in the session of the running transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Any, Final

from pymongo import ASCENDING, DESCENDING, IndexModel, ReturnDocument
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import DuplicateKeyError

from ...store import lifecycle
from ...store.base import LightningStoreError, LightningStoreStatistics
from ...store.listing import (
    GroupPage,
    RolloutFilter,
    RolloutGroup,
    RolloutPage,
)
from ...store.tables import (
    Condition,
    Kind,
    Query,
    Row,
    Values,
    columns_of,
    content_changed,
    object_of,
    readable,
)
from ...types import TERMINAL_ROLLOUT_STATUSES, Attempt, PaginatedResult, ResourcesUpdate, Rollout, Span, Worker

# The collections of the MongoDB store, their indexes and version, and `Query` as a filter and an order.
#
# Every document has an integer `_id`, which orders its collection as things were stored, and fields named as the
# columns of the SQL store; texts named `*_json` hold JSON, so that whatever was stored comes back exactly.
# `queue_position` is null outside of the queue, `deadline` is null for an attempt that no limit can end,
# `latest_attempt` of a rollout is the `_id` of its latest attempt.
#
# The collection of the state holds two documents. One has the schema version. The other is the lock: whoever writes,
# changes it first (`turn`), so that the server refuses one of two concurrent transactions. It has the last number used
# in every collection and the number of deleted documents, hence their count; the end of the queue; and in `news` the
# process that last changed something for which others may wait.


SCHEMA_VERSION: Final = 2

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
        IndexModel([("step", ASCENDING), ("_id", ASCENDING)]),
        IndexModel([("group_id", ASCENDING), ("_id", ASCENDING)]),
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


def prepare(database: Database[Any], name: str) -> None:
    """Create collections and indexes in a database that has none of ours, or check their version.

    Several processes may do this at once. Collections of other programs in the database are left alone.
    """
    state = database[STATE]
    schema = state.find_one(THE_SCHEMA)
    for collection, indexes in _INDEXES.items():  # existing indexes cost nothing
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


_QUEUED: Final = {"queue_position": {"$gt": 0}}
_LIMITED: Final = {"deadline": {"$gt": 0}}
_EXAMINED: Final = 100
"""Minimum number of rollouts that one call of a listing examines."""
_LARGEST: Final = 16 * 1024 * 1024 - 64 * 1024


class MongoTables:
    """Tables of `MongoLightningStore`, in one session: of a transaction, or of reads at one point in time.

    Args:
        database: database of the collections.
        session: session of the transaction or read.
        counters: counters in the lock, for a transaction that holds it; call `write_counters` at its end. None for a
            session that only reads.
    """

    def __init__(self, database: Database[Any], session: ClientSession, counters: dict[str, int] | None = None) -> None:
        self._session = session
        self._state = database[STATE]
        self._rollouts = database[ROLLOUTS]
        self._attempts = database[ATTEMPTS]
        self._spans = database[SPANS]
        self._resources = database[RESOURCES]
        self._workers = database[WORKERS]
        self._outcomes = database[OUTCOMES]
        self._of_kind: dict[Kind, Collection[Any]] = {
            "rollout": self._rollouts,
            "attempt": self._attempts,
            "span": self._spans,
            "resources": self._resources,
            "worker": self._workers,
        }
        self._counters = counters
        self._counted: set[str] = set()

    @property
    def counters(self) -> dict[str, int]:
        """Return the counters in the lock, with the changes of this transaction."""
        if self._counters is None:
            lock = self._state.find_one(THE_LOCK, dict.fromkeys(COUNTERS, 1), session=self._session) or {}
            self._counters = {name: lock.get(name, 0) for name in COUNTERS}
        return self._counters

    def write_counters(self, **fields: Any) -> None:
        """Store the counters that have changed, and `fields`, in the lock."""
        fields |= {name: self.counters[name] for name in self._counted}
        if fields:
            self._state.update_one(THE_LOCK, {"$set": fields}, session=self._session)

    def rollout(self, rollout_id: str) -> tuple[Rollout, Attempt | None] | None:
        rows = self._with_latest(self._rollouts.find({"rollout_id": rollout_id}, session=self._session))
        return rows[0] if rows else None

    def queued(self, limit: int) -> Sequence[tuple[Rollout, Attempt | None]]:
        if limit == 0:  # to MongoDB, a limit of 0 is none
            return []
        cursor = self._rollouts.find(_QUEUED, session=self._session).sort("queue_position", ASCENDING).limit(limit)
        return self._with_latest(cursor)

    def has_queued(self) -> bool:
        return self._rollouts.find_one(_QUEUED, {"_id": 1}, session=self._session) is not None

    def insert_rollouts(self, rollouts: Sequence[Rollout]) -> None:
        documents = []
        for rollout in rollouts:
            queued = rollout.status in lifecycle.QUEUED_STATUSES
            documents.append(
                _fitting(columns_of("rollout", rollout), f"rollout {rollout.rollout_id}")
                | {
                    "_id": self._next(ROLLOUTS),
                    "latest_attempt": None,
                    "reward": None,
                    "queue_position": self._next("queue_end") if queued else None,
                }
            )
        if documents:
            self._rollouts.insert_many(documents, session=self._session)

    def replace_rollout(self, old: Rollout, new: Rollout) -> None:
        changed: Values = {}
        if content_changed(old, new):
            changed = _fitting(columns_of("rollout", new), f"rollout {new.rollout_id}")
        if new.status != old.status:
            changed |= {"status": new.status, "end_time": new.end_time}
            if new.status not in lifecycle.QUEUED_STATUSES:
                changed["queue_position"] = None
            elif old.status not in lifecycle.QUEUED_STATUSES:
                changed["queue_position"] = self._next("queue_end")
        if changed:
            self._rollouts.update_one({"rollout_id": new.rollout_id}, {"$set": changed}, session=self._session)

    def delete_spans(self, rollout_id: str, limit: int) -> int:
        some = self._spans.find({"rollout_id": rollout_id}, {"_id": 1}, session=self._session).limit(limit)
        numbers = [document["_id"] for document in some]
        if numbers:
            self._spans.delete_many({"_id": {"$in": numbers}}, session=self._session)
            self._count(DELETED[SPANS], len(numbers))
        return len(numbers)

    def delete_rollout(self, rollout_id: str) -> None:
        for collection in (self._spans, self._attempts, self._rollouts):
            result = collection.delete_many({"rollout_id": rollout_id}, session=self._session)
            self._count(DELETED[collection.name], result.deleted_count)

    def attempt(self, rollout_id: str, attempt_id: str) -> Attempt | None:
        document = self._attempts.find_one(_ids(rollout_id, attempt_id), session=self._session)
        return None if document is None else object_of("attempt", document)

    def insert_attempt(self, attempt: Attempt, deadline: float | None) -> None:
        number = self._next(ATTEMPTS)
        reached = 0
        if attempt.sequence_id > 1:  # span numbers go on after those of earlier attempts
            earlier = self._attempts.find(
                {"rollout_id": attempt.rollout_id}, {"last_span_number": 1}, session=self._session
            )
            reached = max((int(document["last_span_number"]) for document in earlier), default=0)
        extra = {"_id": number, "last_span_number": reached, "deadline": deadline}
        self._attempts.insert_one(_attempt_document(attempt) | extra, session=self._session)
        self._rollouts.update_one(
            {"rollout_id": attempt.rollout_id},
            {"$set": {"latest_attempt": number, "reward": None}},
            session=self._session,
        )

    def replace_attempt(self, attempt: Attempt, deadline: float | None) -> None:
        document = _attempt_document(attempt) | {"deadline": deadline}
        ids = _ids(attempt.rollout_id, attempt.attempt_id)
        self._attempts.update_one(ids, {"$set": document}, session=self._session)

    def overdue(self, now: float, limit: int) -> Sequence[tuple[str, str]]:
        fields = {"rollout_id": 1, "attempt_id": 1}
        cursor = self._attempts.find({"deadline": {"$gt": 0, "$lte": now}}, fields, limit=limit, session=self._session)
        return [(document["rollout_id"], document["attempt_id"]) for document in cursor]

    def next_deadline(self) -> float | None:
        first = [("deadline", ASCENDING)]
        document = self._attempts.find_one(_LIMITED, {"deadline": 1}, sort=first, session=self._session)
        return None if document is None else float(document["deadline"])

    def take_span_numbers(self, rollout_id: str, attempt_id: str, count: int) -> int | None:
        document = self._attempts.find_one_and_update(
            _ids(rollout_id, attempt_id),
            {"$inc": {"last_span_number": count}},
            {"last_span_number": 1},
            return_document=ReturnDocument.AFTER,
            session=self._session,
        )
        return None if document is None else int(document["last_span_number"]) - count + 1

    def insert_spans(self, rollout_id: str, attempt_id: str, spans: Sequence[Span]) -> Sequence[Span]:
        ids = _ids(rollout_id, attempt_id)
        first_of: dict[str, Span] = {}
        for span in spans:
            first_of.setdefault(span.span_id, span)
        present = self._spans.find(ids | {"span_id": {"$in": list(first_of)}}, {"span_id": 1}, session=self._session)
        known = {document["span_id"] for document in present}
        new = [span for span_id, span in first_of.items() if span_id not in known]
        if new:
            documents = [
                _fitting(columns_of("span", span), f"span {span.span_id}") | {"_id": self._next(SPANS)} for span in new
            ]
            self._spans.insert_many(documents, session=self._session)
            reached = max(span.sequence_id for span in new)
            self._attempts.update_one(ids, {"$max": {"last_span_number": reached}}, session=self._session)
            if any(document["reward"] is not None for document in documents):
                self._set_reward(ids)
        return new

    def _set_reward(self, ids: dict[str, str]) -> None:
        """Set the reward of a rollout to that of the last reward span of an attempt, if this is the latest attempt."""
        rewarded = ids | {"reward": {"$type": "number"}}
        last = [("sequence_id", DESCENDING), ("_id", DESCENDING)]
        span = self._spans.find_one(rewarded, {"reward": 1}, sort=last, session=self._session)
        attempt = self._attempts.find_one(ids, {"_id": 1}, session=self._session)
        if span is not None and attempt is not None:
            latest = {"rollout_id": ids["rollout_id"], "latest_attempt": attempt["_id"]}
            self._rollouts.update_one(latest, {"$set": {"reward": span["reward"]}}, session=self._session)

    def latest_resources(self) -> ResourcesUpdate | None:
        last = [("write_number", DESCENDING)]
        document = self._resources.find_one({}, sort=last, session=self._session)
        return None if document is None else object_of("resources", document)

    def resources(self, resources_id: str) -> ResourcesUpdate | None:
        document = self._resources.find_one({"resources_id": resources_id}, session=self._session)
        return None if document is None else object_of("resources", document)

    def write_resources(self, update: ResourcesUpdate) -> None:
        document = _fitting(columns_of("resources", update), f"the set of resources {update.resources_id}")
        self._write(RESOURCES, "resources_id", document | {"write_number": self._next("resource_writes")})

    def worker(self, worker_id: str) -> Worker | None:
        document = self._workers.find_one({"worker_id": worker_id}, session=self._session)
        return None if document is None else object_of("worker", document)

    def write_worker(self, worker: Worker) -> None:
        self._write(WORKERS, "worker_id", _fitting(columns_of("worker", worker), f"worker {worker.worker_id}"))

    def select(self, query: Query) -> PaginatedResult[Any]:
        collection, matching = self._of_kind[query.kind], filter_of(query)
        items: list[Any] = []
        if query.limit != 0:
            cursor = collection.find(matching, sort=sort_of(query), skip=query.offset, session=self._session)
            documents = cursor if query.limit == -1 else cursor.limit(query.limit)
            if query.kind == "rollout":
                items = [lifecycle.with_attempt(*row) for row in self._with_latest(documents)]
            else:
                items = readable(partial(object_of, query.kind), documents)
        if query.limit == -1 and query.offset == 0:
            total = len(items)
        elif matching:
            total = collection.count_documents(matching, session=self._session)
        else:
            total = self._total(collection.name)
        return PaginatedResult.model_construct(items=items, limit=query.limit, offset=query.offset, total=total)

    def handles(self, query: Query) -> PaginatedResult[Any]:
        collection, matching = self._of_kind[query.kind], filter_of(query)
        limit = 1 if query.limit == 0 else max(0, query.limit)  # to MongoDB, a limit of 0 is none
        documents = collection.find(
            matching, {"_id": 1}, sort=sort_of(query), skip=query.offset, limit=limit, session=self._session
        )
        numbers = [document["_id"] for document in documents][: None if query.limit == -1 else query.limit]
        total = collection.count_documents(matching, session=self._session)
        return PaginatedResult.model_construct(items=numbers, limit=query.limit, offset=query.offset, total=total)

    def items(self, kind: Kind, handles: Sequence[Any]) -> list[Any]:
        place = {number: index for index, number in enumerate(handles)}
        unordered = self._of_kind[kind].find({"_id": {"$in": list(handles)}}, session=self._session)
        documents = sorted(unordered, key=lambda document: place[document["_id"]])
        if kind == "rollout":
            return [lifecycle.with_attempt(*each) for each in self._with_latest(documents)]
        return readable(partial(object_of, kind), documents)

    def list_rollouts(self, wanted: RolloutFilter, before: int | None, limit: int) -> RolloutPage:
        tests: dict[str, Any] = {} if before is None else {"_id": {"$lt": before}}
        if wanted.status_in is not None:
            tests["status"] = {"$in": list(wanted.status_in)}
        for name, value in (("step", wanted.step), ("group_id", wanted.group)):
            if value is not None:
                tests[name] = value
        examined = max(limit, _EXAMINED)
        cursor = self._rollouts.find(tests, session=self._session).sort("_id", DESCENDING).limit(examined)
        documents = {document["rollout_id"]: document for document in cursor}
        items, rewards = [], []
        for rollout, attempt in self._with_latest(documents.values()):
            document = documents[rollout.rollout_id]
            spans = self._spans.find({"rollout_id": rollout.rollout_id}, {"body_json": 1}, session=self._session)
            if wanted.matches(rollout, attempt, document["reward"]) and wanted.text_found(
                rollout, attempt, (span["body_json"] for span in spans)
            ):
                items.append(lifecycle.with_attempt(rollout, attempt))
                rewards.append(document["reward"])
                if len(items) == limit:
                    return RolloutPage.model_construct(items=items, rewards=rewards, next=document["_id"])
        position = next(reversed(documents.values()))["_id"] if len(documents) == examined else None
        return RolloutPage.model_construct(items=items, rewards=rewards, next=position)

    def list_groups(self, before: int | None, limit: int) -> GroupPage:
        stages: list[dict[str, Any]] = [
            {"$match": {"group_id": {"$ne": None}}},
            {"$group": {"_id": "$group_id", "first": {"$min": "$_id"}}},
        ]
        if before is not None:
            stages.append({"$match": {"first": {"$lt": before}}})
        stages += [{"$sort": {"first": -1}}, {"$limit": limit}]
        firsts = {group["_id"]: group["first"] for group in self._rollouts.aggregate(stages, session=self._session)}
        members = self._rollouts.find({"group_id": {"$in": list(firsts)}}, session=self._session)
        groups: dict[str, RolloutGroup] = {}
        for document in members.sort("_id", ASCENDING):
            group = groups.get(document["group_id"])
            if group is None:
                task = json.loads(document["input_json"])
                group = RolloutGroup(group=document["group_id"], step=document["step"], rewards=[], input=task)
                groups[group.group] = group
            group.rewards.append(document["reward"])
        position = min(firsts.values()) if len(firsts) == limit else None
        return GroupPage.model_construct(items=[groups[name] for name in firsts], next=position)

    def ended(self, rollout_ids: Sequence[str]) -> tuple[Sequence[Rollout], Sequence[str]]:
        fields = {"rollout_id": 1, "status": 1}
        statuses = self._rollouts.find({"rollout_id": {"$in": list(rollout_ids)}}, fields, session=self._session)
        status_of = {document["rollout_id"]: document["status"] for document in statuses}
        done = [i for i in rollout_ids if status_of.get(i) in TERMINAL_ROLLOUT_STATUSES]
        rollouts: dict[str, Rollout] = {}
        if done:
            documents = self._rollouts.find({"rollout_id": {"$in": done}}, session=self._session)
            rollouts = {
                rollout.rollout_id: lifecycle.with_attempt(rollout, latest)
                for rollout, latest in self._with_latest(documents)
            }
        return [rollouts[i] for i in done if i in rollouts], [i for i in rollout_ids if i not in status_of]

    def counts(self) -> LightningStoreStatistics:
        return LightningStoreStatistics(
            total_rollouts=self._total(ROLLOUTS),
            rollouts_by_status={
                group["_id"]: group["count"]
                for group in self._rollouts.aggregate(
                    [{"$group": {"_id": "$status", "count": {"$sum": 1}}}], session=self._session
                )
            },
            total_attempts=self._total(ATTEMPTS),
            total_spans=self._total(SPANS),
            total_resources=self._total(RESOURCES),
            total_workers=self._total(WORKERS),
        )

    def outcome(self, key: str) -> str | None:
        document = self._outcomes.find_one({"_id": key}, session=self._session)
        return None if document is None else str(document["outcome_json"])

    def keep_outcome(self, key: str, outcome: str) -> None:
        document = {"_id": key, "time": datetime.now(timezone.utc), "outcome_json": outcome}
        self._outcomes.insert_one(document, session=self._session)

    def _with_latest(self, cursor: Iterable[Any]) -> list[tuple[Rollout, Attempt | None]]:
        documents = list(cursor)
        numbers = [document["latest_attempt"] for document in documents if document["latest_attempt"] is not None]
        latest = self._attempts.find({"_id": {"$in": numbers}}, session=self._session) if numbers else ()
        attempts = {document["_id"]: document for document in latest}

        def with_latest(document: Row) -> tuple[Rollout, Attempt | None]:
            attempt = attempts.get(document["latest_attempt"])
            return object_of("rollout", document), None if attempt is None else object_of("attempt", attempt)

        return readable(with_latest, documents)

    def _write(self, name: str, key: str, document: Values) -> None:
        """Insert a document, or replace all of it but its number."""
        collection = self._state.database[name]
        replaced = collection.update_one({key: document[key]}, {"$set": document}, session=self._session)
        if not replaced.matched_count:
            collection.insert_one(document | {"_id": self._next(name)}, session=self._session)

    def _total(self, name: str) -> int:
        """Return how many documents a collection has."""
        deleted = DELETED.get(name)
        return self.counters[name] - (0 if deleted is None else self.counters[deleted])

    def _next(self, counter: str) -> int:
        return self._count(counter, 1)

    def _count(self, counter: str, more: int) -> int:
        self._counted.add(counter)
        self.counters[counter] += more
        return self.counters[counter]


def _ids(rollout_id: str, attempt_id: str) -> dict[str, str]:
    return {"rollout_id": rollout_id, "attempt_id": attempt_id}


def _attempt_document(attempt: Attempt) -> Values:
    return _fitting(columns_of("attempt", attempt), f"attempt {attempt.attempt_id}")


def _fitting(columns: Values, what: str) -> Values:
    texts = [value for name, value in columns.items() if name.endswith("_json")]
    size = sum(len(text) if text.isascii() else len(text.encode()) for text in texts)
    if size > _LARGEST:
        raise ValueError(
            f"{what} takes {size} bytes as JSON, and MongoDB keeps at most {_LARGEST} in one document: "
            "make it smaller, or use another store"
        )
    return columns
