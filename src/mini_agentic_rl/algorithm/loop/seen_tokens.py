"""A record of what the learner saw of each trained token: its log-probability and entropy, before the update.

It goes into the store as one span of each rollout that was learnt from, so that a dashboard can colour tokens by it. A
store that does not take it is warned of; nothing that a run computes depends on it. It is written when the next step
begins, or the last one has ended: between an update and its place in the metrics nothing may be awaited, since an
interruption there would find one without the other.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...semconv import AGL_LEARNER, LearnerSpanAttributes
from ...store import LightningStore
from ...tokens import CompletionRecord
from ...types import Span

logger = logging.getLogger(__name__)

Numbers = npt.NDArray[np.float32]

_DIGITS = 4


@dataclass(frozen=True)
class SeenCall:
    """One LLM call as the learner saw it."""

    record: CompletionRecord
    version: int
    """Policy version of the learner's weights."""
    logprobs_N: Numbers
    """Log-probabilities of its trained tokens [N]."""
    entropy_N: Numbers
    """Entropies of the distributions that they were drawn from [N]."""


async def record_seen(store: LightningStore, calls: Sequence[SeenCall]) -> None:
    """Add a span to each attempt among the calls."""
    by_attempt: dict[tuple[str, str], list[SeenCall]] = {}
    for call in calls:
        if call.record.rollout_id and call.record.attempt_id and np.isfinite(call.logprobs_N).all():
            by_attempt.setdefault((call.record.rollout_id, call.record.attempt_id), []).append(call)
    if not by_attempt:
        return
    try:
        numbers = await store.get_many_span_sequence_ids(list(by_attempt))
        numbered = zip(by_attempt.items(), numbers, strict=True)
        spans = [_span(*ids, number, of_attempt) for (ids, of_attempt), number in numbered]
        await store.add_many_spans(spans)
    except Exception as error:  # of any store; the run goes on, and what it needs of the store tells by itself
        logger.warning("what the learner saw of %d rollouts is not recorded: %s", len(by_attempt), error)


def _span(rollout_id: str, attempt_id: str, number: int, calls: Sequence[SeenCall]) -> Span:
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
            LearnerSpanAttributes.LOGPROBS: _rounded([call.logprobs_N for call in calls]),
            LearnerSpanAttributes.ENTROPIES: _rounded([call.entropy_N for call in calls]),
        },
    )


def _rounded(each: Sequence[Numbers]) -> list[float]:
    return [round(value, _DIGITS) for values_N in each for value in values_N.tolist()]
