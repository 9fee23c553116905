"""Queries and listings in SQL. Each function returns a statement and its values, by name.

The SQL is SQLite's, with parameters written `:name`; `session.Session` translates it for PostgreSQL.
"""

from __future__ import annotations

import json
from typing import Any, Final, TypeAlias

from ...types import Attempt, Rollout
from .. import lifecycle
from ..listing import RolloutFilter, json_spellings
from ..tables import Condition, Kind, Query, Row, Values, object_of
from .schema import COLUMNS

Sql: TypeAlias = tuple[str, Values]

_TABLE_OF: Final[dict[Kind, str]] = {
    "rollout": "agl_rollouts",
    "attempt": "agl_attempts",
    "span": "agl_spans",
    "resources": "agl_resources",
    "worker": "agl_workers",
}
_GREATEST: Final = 2**63 - 1
_PREFIX: Final = "attempt_"
ROLLOUTS_WITH_LATEST: Final = (
    f"SELECT agl_rollouts.*, {', '.join(f'agl_attempts.{name} AS {_PREFIX}{name}' for name in COLUMNS['agl_attempts'])}"
    " FROM agl_rollouts LEFT JOIN agl_attempts"
    " ON agl_attempts.rollout_id = agl_rollouts.rollout_id AND agl_attempts.sequence_id = agl_rollouts.attempts"
)
"""Every rollout with its latest attempt, as rows for `rollout_and_latest`."""
_ALL_OF: Final[dict[Kind, str]] = {kind: f"SELECT {table}.* FROM {table}" for kind, table in _TABLE_OF.items()} | {
    "rollout": ROLLOUTS_WITH_LATEST
}


def rollout_and_latest(row: Row) -> tuple[Rollout, Attempt | None]:
    """Return both objects of a row of `ROLLOUTS_WITH_LATEST`."""
    attempt = None if row[_PREFIX + "attempt_id"] is None else object_of("attempt", row, _PREFIX)
    return object_of("rollout", row), attempt


def item_of(kind: Kind, row: Row) -> Any:
    """Return the object of a row of `page_of`."""
    return lifecycle.with_attempt(*rollout_and_latest(row)) if kind == "rollout" else object_of(kind, row)


def page_of(query: Query) -> Sql:
    """Select the rows of the page, in order."""
    if query.kind not in ("rollout", "span") or query.limit == -1:
        table = _TABLE_OF[query.kind]
        where, values = _where(query)
        cut = _cut(query, values)
        return f"{_ALL_OF[query.kind]} WHERE {where} ORDER BY {_order(query, table)}{cut}", values
    # Sort and skip only the numbers, and read the rows of the page alone.
    numbers, values = numbers_of(query)
    table = _TABLE_OF[query.kind]
    return f"{_ALL_OF[query.kind]} WHERE {table}.number IN ({numbers}) ORDER BY {_order(query, table)}", values


def numbers_of(query: Query) -> Sql:
    """Select the numbers of the rows of the page, in order."""
    table = _TABLE_OF[query.kind]
    where, values = _where(query)
    cut = _cut(query, values)
    return f"SELECT {table}.number FROM {table} WHERE {where} ORDER BY {_order(query, table)}{cut}", values


def rows_of(kind: Kind, numbers: list[int]) -> Sql:
    """Select the rows of these numbers, in any order."""
    some = "SELECT CAST(value AS bigint) FROM json_each(:numbers)"
    return f"{_ALL_OF[kind]} WHERE {_TABLE_OF[kind]}.number IN ({some})", {"numbers": json.dumps(numbers)}


def total_of(query: Query) -> Sql:
    """Count the items that match, on all pages."""
    where, values = _where(query)
    return f"SELECT count(*) FROM {_TABLE_OF[query.kind]} WHERE {where}", values


def _order(query: Query, table: str) -> str:
    descending = query.sort_order == "desc"
    if query.sort_by is None:
        return f"{table}.number {'DESC' if descending else 'ASC'}"
    return f"{table}.{query.sort_by} {'DESC NULLS LAST' if descending else 'ASC NULLS FIRST'}, {table}.number ASC"


def _cut(query: Query, values: Values) -> str:
    """Return the end of a statement for the page alone, and add its values."""
    if query.limit == -1 and not query.offset:
        return ""
    values["limit"] = _GREATEST if query.limit == -1 else query.limit
    values["offset"] = query.offset
    return " LIMIT :limit OFFSET :offset"


def _where(query: Query) -> Sql:
    values: Values = {}
    tests = [_test(condition, query.kind, values) for condition in query.scope]
    filters = [_test(condition, query.kind, values) for condition in query.filters]
    if filters:
        tests.append(f"({f' {query.logic} '.join(filters)})")
    return " AND ".join(tests) or "1 = 1", values


def _test(condition: Condition, kind: Kind, values: Values) -> str:
    """Return the test of one column, and add its value to `values`."""
    name = f"value_{len(values)}"
    column, value, test = f"{_TABLE_OF[kind]}.{condition.field}", condition.value, condition.test
    if test == "one_of" and len(value) == 1:
        # For a single value the database can use an index that also gives the order.
        value, test = value[0], "equals"
    if test == "one_of":
        values[name] = json.dumps(value)
        return f"{column} IN (SELECT value FROM json_each(:{name}))"
    values[name] = value
    return f"{column} = :{name}" if test == "equals" else f"instr({column}, :{name}) > 0"


def listing_of(wanted: RolloutFilter, before: int | None, limit: int) -> Sql:
    """Select the rows of a page of rollouts, the newest first, of those that `examined_of` selects."""
    examined, values = examined_of(wanted, before, limit)
    values |= {name: value for name, value in vars(wanted).items() if value is not None} | {"limit": limit}
    tests = [f"agl_rollouts.number IN ({examined})"]
    for name, test in (
        ("mode", "agl_rollouts.mode = :mode"),
        ("step", "agl_rollouts.step = :step"),
        ("group", "agl_rollouts.group_id = :group"),
        ("reward_min", "agl_rollouts.reward >= :reward_min"),
        ("reward_max", "agl_rollouts.reward <= :reward_max"),
        ("worker_contains", "instr(agl_attempts.worker_id, :worker_contains) > 0"),
    ):
        if name in values:
            tests.append(test)
    if wanted.status_in is not None:
        values["status_in"] = json.dumps(list(wanted.status_in))
        tests.append("agl_rollouts.status IN (SELECT value FROM json_each(:status_in))")
    if wanted.input_contains is not None:
        tests.append(_contains_text(wanted.input_contains, values, "agl_rollouts.input_json"))
    if wanted.text is not None:
        in_rollout = _contains_text(
            wanted.text,
            values,
            "agl_rollouts.rollout_id",
            "agl_rollouts.input_json",
            "agl_rollouts.metadata_json",
            "agl_attempts.metadata_json",
        )
        in_span = _contains_text(wanted.text, values, "agl_spans.body_json")
        of_rollout = f"SELECT 1 FROM agl_spans WHERE agl_spans.rollout_id = agl_rollouts.rollout_id AND {in_span}"
        tests.append(f"({in_rollout} OR EXISTS ({of_rollout}))")
    order = "ORDER BY agl_rollouts.number DESC LIMIT :limit"
    return f"{ROLLOUTS_WITH_LATEST} WHERE {' AND '.join(tests)} {order}", values


def examined_of(wanted: RolloutFilter, before: int | None, limit: int) -> Sql:
    """Select the numbers of the rollouts that a listing looks at, the newest first, by the narrowest index."""
    values: Values = {"before": _GREATEST if before is None else before, "examined": wanted.max_examined(limit)}
    test = ""
    if wanted.group is not None:
        test, values["group"] = "group_id = :group AND ", wanted.group
    elif wanted.step is not None:
        test, values["step"] = "step = :step AND ", wanted.step
    elif wanted.status_in is not None and len(wanted.status_in) == 1:
        test, values["status"] = "status = :status AND ", wanted.status_in[0]
    numbers = f"SELECT number FROM agl_rollouts WHERE {test}number < :before ORDER BY number DESC LIMIT :examined"
    return numbers, values


def _contains_text(text: str, values: Values, *columns: str) -> str:
    tests = []
    for spelling in set(json_spellings(text)):
        name = f"text_{len(values)}"
        values[name] = spelling
        tests += [f"instr(coalesce({column}, ''), :{name}) > 0" for column in columns]
    return f"({' OR '.join(tests)})"


# The newest group first, its oldest rollout first. The task is read of the first rollout alone: it may be long.
_GROUPS: Final = """
    SELECT page.number AS first, member.group_id, member.step, member.reward,
        CASE WHEN member.number = page.number THEN member.input_json END AS input_json
    FROM (
        SELECT newest.number, newest.group_id FROM agl_rollouts newest
        WHERE newest.group_id IS NOT NULL AND newest.number < :before AND NOT EXISTS (
            SELECT 1 FROM agl_rollouts older
            WHERE older.group_id = newest.group_id AND older.number < newest.number
        )
        ORDER BY newest.number DESC LIMIT :limit
    ) page JOIN agl_rollouts member ON member.group_id = page.group_id
    ORDER BY page.number DESC, member.number
"""


def groups_of(before: int | None, limit: int) -> Sql:
    """Select the rollouts of a page of groups."""
    return _GROUPS, {"before": _GREATEST if before is None else before, "limit": limit}
