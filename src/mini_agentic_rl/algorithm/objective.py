"""The part of a training that tells algorithms apart: `Objective`, from the groups of a step to new weights.

The loop measures, warms up, samples, counts steps, writes checkpoints and resumes from them for every algorithm alike.
It records what the learner computed at each trained token as one span of each rollout, so that a dashboard can colour
tokens by it.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..policy import Learner, SeenTerms
from ..semconv import AGL_LEARNER, LearnerSpanAttributes
from ..store import LightningStore
from ..tokens import CompletionRecord
from ..types import Span
from .batch import TrainingBatch
from .groups import Group

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SeenCall:
    """One LLM call as the learner computed it before the update."""

    record: CompletionRecord
    version: int
    """Policy version of the learner's weights."""
    logprobs_N: npt.NDArray[np.float32]
    """Log-probabilities of its trained tokens [N]."""
    entropy_N: npt.NDArray[np.float32]
    """Entropies of the distributions that they were drawn from [N]."""


class Objective:
    """The update: makes new weights of rollouts. It is made once a run, and used on the torch thread alone."""

    def __init__(self, learners: Mapping[str, Learner]) -> None:
        """`learners` are the optimizers by the names of the adapters; the loop keeps them in checkpoints."""
        self.learners = learners
        self._seen: list[SeenCall] = []

    def has_signal(self, group: Group) -> bool:
        """Return True if training on the group could change the policy. Safe on any thread."""
        raise NotImplementedError

    def update(self, adapter: str, groups: Sequence[Group]) -> dict[str, float]:
        """Take all optimizer steps on the groups that one step sampled for `adapter`; return metrics. If there is
        nothing to learn from, no weight changes."""
        raise NotImplementedError

    def note_seen(self, batch: TrainingBatch, version: int, seen: SeenTerms) -> None:
        """Keep the numbers of a batch's first pass for `take_seen`."""
        end = 0
        for call in batch.calls:
            begin, end = end, end + call.record.trained_tokens
            self._seen.append(SeenCall(call.record, version, seen.logprobs_S[begin:end], seen.entropy_S[begin:end]))

    def take_seen(self) -> Sequence[SeenCall]:
        """Return the calls that were trained since the last call of this method."""
        seen, self._seen = self._seen, []
        return seen

    def save_state(self, folder: Path) -> None:
        """Write into the folder of a checkpoint what a run needs besides adapters and optimizers, such as a critic."""

    def load_state(self, folder: Path) -> None:
        """Read back what `save_state` wrote."""


async def record_seen(store: LightningStore, calls: Sequence[SeenCall]) -> None:
    """Add a span to each attempt among the calls. A failure of the store is only logged: no result of the run depends
    on these spans.

    The loop calls this when the next step begins, or the last one has ended: nothing may be awaited between an update
    and its place in the metrics, or an interruption there would find one without the other.
    """
    by_attempt: dict[tuple[str, str], list[SeenCall]] = {}
    for call in calls:
        if call.record.rollout_id and call.record.attempt_id and np.isfinite(call.logprobs_N).all():
            by_attempt.setdefault((call.record.rollout_id, call.record.attempt_id), []).append(call)
    if not by_attempt:
        return
    try:
        numbers = await store.get_many_span_sequence_ids(list(by_attempt))
        numbered = zip(by_attempt.items(), numbers, strict=True)
        await store.add_many_spans([_span(*ids, number, calls) for (ids, calls), number in numbered])
    except Exception as error:  # of any store
        logger.warning("log-probabilities and entropies of %d rollouts are not recorded: %s", len(by_attempt), error)


def _span(rollout_id: str, attempt_id: str, number: int, calls: Sequence[SeenCall]) -> Span:
    def rounded(arrays: Sequence[npt.NDArray[np.float32]]) -> list[float]:
        return [round(value, 4) for values_N in arrays for value in values_N.tolist()]

    now = time.time()
    return Span(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=number,
        trace_id=secrets.token_hex(16),
        span_id=secrets.token_hex(8),
        name=AGL_LEARNER,
        start_time=now,
        end_time=now,
        attributes={
            LearnerSpanAttributes.VERSION: calls[0].version,
            LearnerSpanAttributes.SPAN_IDS: [str(call.record.metadata.get("span_id", "")) for call in calls],
            LearnerSpanAttributes.LENGTHS: [int(call.logprobs_N.size) for call in calls],
            LearnerSpanAttributes.LOGPROBS: rounded([call.logprobs_N for call in calls]),
            LearnerSpanAttributes.ENTROPIES: rounded([call.entropy_N for call in calls]),
        },
    )
