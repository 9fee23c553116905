"""Rows of the SQL store and the objects that they stand for."""

from __future__ import annotations

import json
from typing import Any, Final, TypeAlias

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python
from sqlalchemy import RowMapping

from ..types import Attempt, NamedResources, ResourcesUpdate, Rollout, Span, Worker

_RESOURCES: Final[TypeAdapter[NamedResources]] = TypeAdapter(NamedResources)
_SPAN_COLUMNS: Final = (
    "rollout_id",
    "attempt_id",
    "sequence_id",
    "trace_id",
    "span_id",
    "parent_id",
    "name",
    "start_time",
    "end_time",
)

Values: TypeAlias = dict[str, Any]


def to_json(value: Any) -> str:
    """JSON text; numbers come back exactly, infinities and NaN included, and so does any text.

    Raises:
        ValueError: the value holds something that JSON cannot express.
    """
    try:
        return json.dumps(value, default=to_jsonable_python, separators=(",", ":"))
    except (TypeError, ValueError) as error:  # a strange key, a strange object, a circle
        raise ValueError(f"a SQL store keeps tasks, metadata and spans as JSON: {error}") from error


def rollout_columns(rollout: Rollout) -> Values:
    """Column → value."""
    return {
        "rollout_id": rollout.rollout_id,
        "status": rollout.status,
        "mode": rollout.mode,
        "resources_id": rollout.resources_id,
        "start_time": rollout.start_time,
        "end_time": rollout.end_time,
        "input_json": to_json(rollout.input),
        "config_json": rollout.config.model_dump_json(),
        "metadata_json": to_json(rollout.metadata),
    }


def rollout_of(row: RowMapping) -> Rollout:
    """The rollout of a row."""
    return Rollout(
        rollout_id=row["rollout_id"],
        status=row["status"],
        mode=row["mode"],
        resources_id=row["resources_id"],
        start_time=row["start_time"],
        end_time=row["end_time"],
        input=json.loads(row["input_json"]),
        config=json.loads(row["config_json"]),
        metadata=json.loads(row["metadata_json"]),
    )


def attempt_columns(attempt: Attempt) -> Values:
    """Column → value."""
    values = dict(vars(attempt))
    values["metadata_json"] = to_json(values.pop("metadata"))
    return values


def attempt_of(row: RowMapping, prefix: str = "") -> Attempt:
    """The attempt of a row whose columns are named with a prefix."""
    values = {name: row[prefix + name] for name in Attempt.model_fields if name != "metadata"}
    return Attempt(**values, metadata=json.loads(row[prefix + "metadata_json"]))


def span_columns(span: Span) -> Values:
    """Column → value; what has no column of its own goes into `body_json`."""
    values: Values = {name: getattr(span, name) for name in _SPAN_COLUMNS}
    values["body_json"] = to_json(span.model_dump(exclude=set(_SPAN_COLUMNS)))
    return values


def span_of(row: RowMapping) -> Span:
    """The span of a row."""
    return Span(**json.loads(row["body_json"]), **{name: row[name] for name in _SPAN_COLUMNS})


def resources_columns(update: ResourcesUpdate) -> Values:
    """Column → value."""
    values = dict(vars(update))
    values["resources_json"] = to_json(_RESOURCES.dump_python(values.pop("resources")))
    return values


def resources_of(row: RowMapping) -> ResourcesUpdate:
    """The set of resources of a row."""
    values = {name: row[name] for name in ResourcesUpdate.model_fields if name != "resources"}
    return ResourcesUpdate(**values, resources=json.loads(row["resources_json"]))


def worker_columns(worker: Worker) -> Values:
    """Column → value."""
    values = dict(vars(worker))
    values["heartbeat_stats_json"] = to_json(values.pop("heartbeat_stats"))
    return values


def worker_of(row: RowMapping) -> Worker:
    """The worker of a row."""
    values = {name: row[name] for name in Worker.model_fields if name != "heartbeat_stats"}
    return Worker(**values, heartbeat_stats=json.loads(row["heartbeat_stats_json"]))
