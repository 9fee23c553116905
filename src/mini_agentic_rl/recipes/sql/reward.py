"""The reward of the SQL agent: execution match and the quality of the answer."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...errors import UserError
from ...rewards import GROUPED, UNCASED, RewardFunction, in_ascii_numbers, weighted_sum
from .data import question_of
from .tool import Cell, QueryError, QueryResult, SqlDatabase, cell_text

# Execution match: a query must have the same result as the gold query.
#
# Results are compared as multisets of rows; the order counts only if the task is `ordered`. A query that reads no table
# is wrong. With a twin database (the same schema and names, other facts) the results must be equal there as well: Zhong
# et al. 2020, "Semantic Evaluation for Text-to-SQL with Distilled Test Suites", section 3.

ABSOLUTE: Final = 0.005
RELATIVE: Final = 1e-6
"""Tolerances for numbers, unless both are integers."""


def same_rows(gold: Sequence[Sequence[Cell]], other: Sequence[Sequence[Cell]], *, ordered: bool = False) -> bool:
    """Return True if two results are equal; columns are compared by position, not by name."""
    if len(gold) != len(other):
        return False
    unmatched = list(other)
    for row in gold:
        candidates = range(1 if ordered else len(unmatched))
        match = next((place for place in candidates if _same_row(row, unmatched[place])), None)
        if match is None:
            return False
        del unmatched[match]
    return True


def _same_row(left: Sequence[Cell], right: Sequence[Cell]) -> bool:
    return len(left) == len(right) and all(map(same_cell, left, right))


def same_cell(left: Cell, right: Cell) -> bool:
    """Return True if two values are equal; texts must be identical."""
    if isinstance(left, int) and isinstance(right, int):
        return left == right
    if isinstance(left, int | float) and isinstance(right, int | float):
        return math.isclose(left, right, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return left == right


def execution_match(
    task: Mapping[str, Any], sql: str, result: QueryResult, database: SqlDatabase, twin: SqlDatabase | None = None
) -> bool:
    """Return True if the query `sql`, with the result `result` on `database`, matches the gold query of the task.

    `task` has the gold query as `sql`, and `ordered` true if the order of its rows counts.

    Raises:
        ValueError: the gold query is missing or does not run.
    """
    if not result.tables or result.truncated:
        return False
    ordered = bool(task.get("ordered"))
    if not same_rows(gold_result(task, database).rows, result.rows, ordered=ordered):
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


ROOM: Final = 200
"""A reply may have this many characters more than three times those of the values. A reply that lists everything is
longer, and gets no reward."""

_NUMBER: Final = re.compile(rf"(?<![^\W{UNCASED}])(?<!\.)-?(?:{GROUPED}|\d+)(?:\.\d+)?(?![^\W{UNCASED}])")
_ASCII: Final = re.compile(r"[\x00-\x7f]+")


@dataclass
class Queries:
    """The tools `query` and `schema` over one database, for one rollout."""

    database: SqlDatabase
    calls: int = 0
    """Number of calls of `query`."""
    sql: str | None = None
    """Last successful query."""
    result: QueryResult | None = None
    """Result of the last successful query."""

    def query(self, arguments: str) -> str:
        """Return the rows of a query, or "error: …". `arguments` is the model's JSON text.

        Raises:
            SqlToolError: the database cannot be served.
        """
        self.calls += 1
        sql = _argument(arguments, "sql")
        if sql is None:
            return 'error: give {"sql": "SELECT ..."}'
        try:
            result = self.database.query(sql)
        except QueryError as error:
            return f"error: {error}"
        self.sql, self.result = sql, result
        return result.text()

    def schema(self, arguments: str) -> str:
        """Return a table's definition and first rows."""
        return self.database.describe(_argument(arguments, "table"))


class RewardUnavailableError(RuntimeError):
    """The reward model gave no score: the rollout fails, instead of getting a reward of 0."""


@dataclass(frozen=True)
class SqlReward:
    """The weighted sum of `execution` (0 or 1) and `answer` (from 0 to 1).

    Accuracy reports count a reward of 1 or more as right; the bounds on the weights make that the execution match.
    """

    execution_weight: float = 1.0
    """Weight of the execution match, 1 or more."""
    answer_weight: float = 0.2
    """Weight of the answer's quality, from 0 to below 1."""
    reward_model: RewardFunction | None = None
    """Scores answers; a sigmoid maps its scores to between 0 and 1. None measures the share of the gold query's values
    that the answer states."""

    def __post_init__(self) -> None:
        if not self.execution_weight >= 1:
            raise UserError(
                f"{self.execution_weight}: 1 or more, so that 1 means a right result", setting="execution_weight"
            )
        if not 0 <= self.answer_weight < 1:
            raise UserError(
                f"{self.answer_weight}: from 0 to below 1, so that 1 means a right result", setting="answer_weight"
            )

    def scores(
        self,
        task: Mapping[str, Any],
        queries: Queries,
        reply: str | None,
        twin: SqlDatabase | None = None,
    ) -> dict[str, float]:
        """Return `reward` and its parts. `reply` is None if the agent gave no answer. Blocks.

        Raises:
            ValueError: the gold query is missing or does not run.
            RewardUnavailableError: the reward model gave no score.
        """
        sql, result = queries.sql, queries.result
        right = sql is not None and result is not None and execution_match(task, sql, result, queries.database, twin)
        quality = self._quality(task, reply, queries.database) if reply and self.answer_weight > 0 else 0.0
        parts = {"execution": float(right), "answer": quality}
        weights = {"execution": self.execution_weight, "answer": self.answer_weight}
        return {"reward": weighted_sum(parts, weights), **parts}

    def _quality(self, task: Mapping[str, Any], reply: str, database: SqlDatabase) -> float:
        rows = gold_result(task, database).rows
        if self.reward_model is None:
            return states_values(reply, rows)
        prompt = [{"role": "user", "content": question_of(task)}]
        (score,) = self.reward_model(completions=[reply], prompts=[prompt], ground_truth=[str(task.get("answer", ""))])
        if score is None:
            raise RewardUnavailableError("the reward model gave no score for an answer; its server's log says why")
        return 1 / (1 + math.exp(-max(-60.0, min(60.0, score))))


def states_values(reply: str, rows: Sequence[Sequence[Cell]]) -> float:
    """Return the share of the values in `rows` that `reply` states, from 0 to 1; 0 for a much too long reply."""
    values = {cell_text(cell): cell for row in rows for cell in row if cell is not None}
    if not values or len(reply) > ROOM + 3 * sum(map(len, values)):
        return 0.0
    numbers = [float(number.replace(",", "")) for number in _NUMBER.findall(in_ascii_numbers(reply))]
    stated = sum(_states(reply, numbers, text, value) for text, value in values.items())
    return stated / len(values)


def _states(reply: str, numbers: Sequence[float], text: str, value: Cell) -> bool:
    if isinstance(value, int | float):
        return any(same_cell(float(value), number) for number in numbers)
    if _ASCII.fullmatch(text):  # a whole word
        return re.search(rf"(?<![a-z0-9]){re.escape(text.lower())}(?![a-z0-9])", reply.lower()) is not None
    return text in reply


def _argument(arguments: str, name: str) -> str | None:
    """Return a text argument of a call; None if there is none."""
    try:
        values: Any = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    value = values.get(name) if isinstance(values, dict) else None
    return value if isinstance(value, str) else None
