"""Log-probabilities of prompts: of their own tokens, of the likeliest, of tokens that the client names.

Requests that wait for the same weights are computed together, in one pass that computes a common beginning once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ...policy import Policy
from ...tokens import TargetSequence, pack_targets

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

_AT_ONCE: Final = 16384
"""Tokens that are scored in one turn of the torch thread, so that others get theirs."""


@dataclass(frozen=True)
class Asked:
    """A question about one sequence: the log-probabilities of `target_N` after `place_N`, or of the `likeliest` tokens
    there."""

    tokens_T: Ints
    place_N: Ints
    target_N: Ints
    likeliest: int = 0


@dataclass(frozen=True)
class PromptScores:
    """The answer: log-probabilities [N], or with `likeliest` ids and log-probabilities [N, K]."""

    logprobs: Floats
    token_ids: Ints | None = None


class PromptScorer:
    """Scores what is asked under one adapter or none, in batches made on the way. Used from one event loop.

    Args:
        max_tokens: packed tokens of a pass, at most.
        head_rows: positions whose logits exist at once, at most.
    """

    def __init__(self, policy: Policy, *, max_tokens: int, head_rows: int) -> None:
        self._policy = policy
        self._max_tokens = max_tokens
        self._head_rows = head_rows
        self._waiting: dict[tuple[str | None, int], list[tuple[Asked, asyncio.Future[PromptScores]]]] = {}
        self._serving: set[asyncio.Task[None]] = set()

    async def score(self, asked: Asked, adapter: str | None) -> PromptScores:
        """Return what is asked, at temperature 1."""
        if not asked.place_N.size:
            wide = (0, asked.likeliest) if asked.likeliest else (0,)
            return PromptScores(np.empty(wide, np.float32), np.empty(wide, np.int64) if asked.likeliest else None)
        kind = (adapter, asked.likeliest)
        queue = self._waiting.setdefault(kind, [])
        found: asyncio.Future[PromptScores] = asyncio.get_running_loop().create_future()
        queue.append((asked, found))
        if len(queue) == 1:
            # A task of its own: whoever began a batch may go away, and those who joined it stay.
            serving = asyncio.create_task(self._serve(kind))
            self._serving.add(serving)
            serving.add_done_callback(self._serving.discard)
        return await found

    async def _serve(self, kind: tuple[str | None, int]) -> None:
        # Whatever arrives until the torch thread is free goes along.
        await self._policy.run_async(lambda: None, brief=True)
        while kind in self._waiting:
            await self._next(kind)

    async def _next(self, kind: tuple[str | None, int]) -> None:
        queue = self._waiting[kind]
        count = size = 0
        while count < len(queue) and (count == 0 or size + queue[count][0].tokens_T.size <= _AT_ONCE):
            size += queue[count][0].tokens_T.size
            count += 1
        batch, rest = queue[:count], queue[count:]
        if rest:
            self._waiting[kind] = rest
        else:
            del self._waiting[kind]
        try:
            asked = [each for each, _ in batch]
            scored = await self._policy.run_async(lambda: self._scored(asked, *kind), brief=True)
        except Exception as error:  # of any kind: it belongs to all who wait for this pass
            for _, found in batch:
                if not found.done():
                    found.set_exception(error)
            return
        for (_, found), each in zip(batch, scored, strict=True):
            if not found.done():
                found.set_result(each)

    def _scored(self, batch: Sequence[Asked], adapter: str | None, likeliest: int) -> list[PromptScores]:
        packed = pack_targets([TargetSequence(each.tokens_T, each.place_N, each.target_N) for each in batch])
        scorer = self._policy.scorer(adapter, max_tokens=self._max_tokens, head_rows=self._head_rows)
        ends = np.cumsum([each.place_N.size for each in batch])[:-1]
        if not likeliest:
            return [PromptScores(each) for each in np.split(scorer.logprobs(packed).float().cpu().numpy(), ends)]
        found = scorer.likeliest(packed, likeliest)
        ids = np.arange(found.logprobs_SK.shape[1])[None].repeat(packed.term_count, 0)
        logprobs = found.logprobs_SK.numpy()
        if found.tokens_SK is not None:
            ids = found.tokens_SK.numpy()
        else:  # all of the vocabulary, in its order: the likeliest come first here
            order = np.argsort(-logprobs, axis=1, kind="stable")
            ids, logprobs = np.take_along_axis(ids, order, 1), np.take_along_axis(logprobs, order, 1)
        pairs = zip(np.split(logprobs, ends), np.split(ids, ends), strict=True)
        return [PromptScores(each_logprobs, each_ids) for each_logprobs, each_ids in pairs]
