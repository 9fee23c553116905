"""A rollout as TRL takes it: one prompt, one completion, and a mask that says what in it was sampled.

    prompt         of the first call
    completion     its answer, what the tool or the user said (mask 0), the next answer, ... up to the last answer

That holds a rollout whose calls continue each other token by token. One that does not (another conversation, a history
that was rewritten) is several sequences, for which TRL has no place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ....algorithm.loop.groups import Trajectory
from ....errors import UserError


@dataclass
class TRLRow:
    """One row of what TRL calls a batch of completions."""

    prompt_ids: list[int]
    completion_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    """[completion tokens] 1 where the policy sampled the token and is trained on it."""
    logprobs: list[float] = field(default_factory=list)
    """[completion tokens] what the sampler recorded; 0 where the mask is 0."""
    reward: float | None = None
    """None takes the row out of its group."""

    def add(self, ids: Sequence[int], mask: Sequence[int], logprobs: Sequence[float]) -> None:
        """Add tokens to the completion."""
        self.completion_ids.extend(ids)
        self.mask.extend(mask)
        self.logprobs.extend(logprobs)


def row_of(trajectory: Trajectory, temperature: float) -> TRLRow:
    """Return the whole of a trajectory as one row.

    Args:
        temperature: the one at which TRL takes log-probabilities.

    Raises:
        UserError: its calls do not continue each other, or were sampled at another temperature.
    """
    credit = trajectory.credited
    row = TRLRow(trajectory.records[0].prompt_ids.tolist(), reward=float(credit.values_C[0]))
    for number, (record, column) in enumerate(zip(trajectory.records, credit.column_R, strict=True)):
        if record.temperature != temperature:
            raise UserError(
                f"'trl' takes log-probabilities at the temperature {temperature:g}, but a call of rollout "
                f"{trajectory.rollout_id} was sampled at {record.temperature:g}: leave the temperature to the resource "
                "that the agent is given, or use `backend=native`",
                setting="backend",
            )
        prompt = record.prompt_ids.tolist()
        before = row.prompt_ids + row.completion_ids
        if prompt[: len(before)] != before:
            raise UserError(
                f"'trl' takes rollouts of one conversation, but call {number + 1} of rollout "
                f"{trajectory.rollout_id} does not continue the one before it: use `backend=native`, which trains any "
                "rollout, or (where a chat template rewrites the history) `thinking=keep`",
                setting="backend",
            )
        between = prompt[len(before) :]
        row.add(between, [0] * len(between), [0.0] * len(between))
        trained = np.ones(record.output_ids.size, np.bool_) if record.forced is None else ~record.forced
        trained = trained & (column >= 0)
        logprobs = np.where(trained, record.logprobs, 0.0)
        row.add(record.output_ids.tolist(), trained.astype(int).tolist(), logprobs.tolist())
    return row


def masked(row: TRLRow) -> TRLRow:
    """Return the row with nothing trained in it; its reward still counts in the mean of its group."""
    size = len(row.completion_ids)
    return replace(row, mask=[0] * size, logprobs=[0.0] * size)


def empty_row(token: int) -> TRLRow:
    """Return a row that fills the place of a rollout which gave nothing to train on: TRL's groups have one size."""
    return TRLRow([token], [token], [0], [0.0])
