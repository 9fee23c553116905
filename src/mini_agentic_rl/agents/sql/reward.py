"""The reward of the SQL agent: execution match, and how good the answer is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import UserError
from ...rewards import RewardFunction, weighted_sum
from ...sql_conversation import question_of
from ...tools.sql import SqlDatabase
from .answer import states_values
from .execution import execution_match, gold_result
from .queries import Queries


class RewardUnavailableError(RuntimeError):
    """The reward model gave no score: the rollout has failed, rather than earned nothing."""


@dataclass(frozen=True)
class SqlReward:
    """The weighted sum of `execution` (0 or 1) and `answer` (from 0 to 1).

    A reward of 1 or more counts as right wherever accuracy is reported; the bounds on the weights make that the
    accuracy of execution.
    """

    execution_weight: float = 1.0
    """Weight of the execution match, 1 or more."""
    answer_weight: float = 0.2
    """Weight of the answer's quality, from 0 to below 1."""
    reward_model: RewardFunction | None = None
    """Judges answers; its scores, of any size, are squashed to between 0 and 1. None asks whether the answer states the
    values that the gold query gives."""

    def __post_init__(self) -> None:
        if not self.execution_weight >= 1:
            raise UserError(f"--execution-weight {self.execution_weight}: 1 or more, so that 1 means a right result")
        if not 0 <= self.answer_weight < 1:
            raise UserError(f"--answer-weight {self.answer_weight}: from 0 to below 1, so that 1 means a right result")

    def scores(
        self,
        task: Mapping[str, Any],
        queries: Queries,
        reply: str | None,
        twin: SqlDatabase | None = None,
    ) -> dict[str, float]:
        """`reward` and what it is made of. `reply` is None where the agent came to no answer. Blocks.

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
