"""Answering the first calls of a rollout with recorded calls: those of a demonstration, or of a rollout that succeeded.

Where every rollout of a task fails, an update has nothing to select. A rollout that begins with the first calls of an
expert and samples only the rest succeeds more often (BREAD; Zhang et al. 2025, arXiv:2506.17211; AdaBack; Amani et al.
2025, arXiv:2506.18110). The agent does not know: its call is answered as any other, token by token as it was recorded.
Every token of such an answer is marked as forced, so that it is context to the learner and never a term of a loss.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...tokens import CompletionRecord, TokenDelta


@dataclass
class ExpertPrefixes:
    """Recorded calls by name; a rollout names them in its metadata (`semconv.EXPERT_PREFIX`)."""

    _records: dict[str, tuple[CompletionRecord, ...]] = field(default_factory=dict)

    def put(self, name: str, records: Sequence[CompletionRecord]) -> None:
        """Keep the calls that rollouts begin with."""
        self._records[name] = tuple(records)

    def remove(self, name: str) -> None:
        """Forget calls; rollouts that have made a call keep theirs."""
        self._records.pop(name, None)

    def begin(self, name: object) -> list[CompletionRecord]:
        """Return the calls of a name, first call first; none where nothing is kept under it."""
        return list(self._records.get(name, ())) if isinstance(name, str) else []


def take_recorded(waiting: list[CompletionRecord], prompt_ids: Sequence[int]) -> CompletionRecord | None:
    """Return the next recorded call, taken from those that are waiting, if its prompt is this one token by token.

    An agent whose prompt differs has left the recorded conversation: the rest of it is dropped.
    """
    if not np.array_equal(waiting[0].prompt_ids, np.asarray(prompt_ids, np.int64)):
        waiting.clear()
        return None
    return waiting.pop(0)


async def replay(record: CompletionRecord, version: int) -> AsyncGenerator[TokenDelta, None]:
    """Yield the tokens of a recorded call, every one of them forced."""
    count = record.output_ids.size
    yield TokenDelta(
        token_ids=tuple(int(token) for token in record.output_ids),
        logprobs=tuple(float(logprob) for logprob in record.logprobs),
        forced=(True,) * count,
        finish_reason=record.finish_reason,
        version=version,
    )
