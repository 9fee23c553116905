"""Execution match: whether a query gives what the gold query gives.

Results are compared as multisets of rows; the order counts only where the gold query is asked for an order. A query
that reads no table is right about nothing. With a twin (the same schema and names, other facts) the two have to agree
there as well: Zhong et al. 2020, "Semantic Evaluation for Text-to-SQL with Distilled Test Suites", section 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from .data import Cell
from .tool import QueryError, QueryResult, SqlDatabase

ABSOLUTE: Final = 0.005
"""Numbers of which one is no integer are equal within half a cent …"""
RELATIVE: Final = 1e-6
"""… or one part in a million. Integers are equal or not."""


def same_rows(gold: Sequence[Sequence[Cell]], found: Sequence[Sequence[Cell]], *, ordered: bool = False) -> bool:
    """Return True if two results are equal; columns are compared in their order, whatever they are called."""
    if len(gold) != len(found):
        return False
    if not ordered:
        gold, found = sorted(gold, key=_sort_key), sorted(found, key=_sort_key)
    return all(
        len(left) == len(right) and all(map(same_cell, left, right)) for left, right in zip(gold, found, strict=True)
    )


def same_cell(left: Cell, right: Cell) -> bool:
    """Return True if two values are equal; texts have to be the same to the letter."""
    if isinstance(left, int) and isinstance(right, int):
        return left == right
    if isinstance(left, int | float) and isinstance(right, int | float):
        return math.isclose(left, right, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return left == right


def execution_match(
    task: Mapping[str, Any], sql: str, found: QueryResult, database: SqlDatabase, twin: SqlDatabase | None = None
) -> bool:
    """Return True if the query `sql`, which gave `found` on `database`, answers the task as its gold query does.

    `task` holds the gold query (`sql`) and, where the order of its rows counts, a true `ordered`.

    Raises:
        ValueError: the gold query is missing or does not run.
    """
    if not found.tables or found.truncated:
        return False
    ordered = bool(task.get("ordered"))
    if not same_rows(gold_result(task, database).rows, found.rows, ordered=ordered):
        return False
    if twin is None:
        return True
    try:
        elsewhere = twin.query(sql)
    except QueryError:
        return False
    return same_rows(gold_result(task, twin).rows, elsewhere.rows, ordered=ordered)


def gold_result(task: Mapping[str, Any], database: SqlDatabase) -> QueryResult:
    """Return the result of the task's gold query.

    Raises:
        ValueError: there is none, or it does not run.
    """
    gold = task.get("sql")
    if not gold:
        raise ValueError('a task of the SQL agent needs its gold query as "sql"')
    try:
        return database.query(str(gold))
    except QueryError as error:
        raise ValueError(f"the gold query {gold!r} does not run: {error}") from error


def _sort_key(row: Sequence[Cell]) -> tuple[Any, ...]:
    """NULL, numbers, texts. Numbers are rounded, so that equal ones stand in equal places, but for those at an edge."""
    return tuple(
        (0, 0.0, "")
        if cell is None
        else (1, round(float(cell), 1), "")
        if isinstance(cell, int | float)
        else (2, 0.0, cell)
        for cell in row
    )
