"""Dynamic batching: texts of all clients wait together, and go through the model in batches.

While the model is idle a text waits a moment for others; while it computes, new texts wait for it. The waiting texts
are planned into batches together, as a round, so that similar texts share a batch.

A round of one request alone may be many batches, and ends early when another request arrives. A round of several is a
batch, shared among them by tokens, and its smallest batch comes first: whatever the size of a request, another waits
only for the current batch and for its own share. A text whose client has left is dropped before its batch.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ...http import BadRequestError, HttpError, OverloadedError
from ...policy import TorchThread
from .rendering import BatchSettings, Rendered
from .reward_model import RewardModel, ScoringBatch

logger = logging.getLogger(__name__)

_ROUND = 16
"""Number of batches that are planned together."""
_SHORTEST_RETRY, _LONGEST_RETRY = 1.0, 60.0
_NEWEST = 0.2
"""Weight of the newest batch in the mean of the speed."""

OnBatch = Callable[[ScoringBatch, float], None]
"""Called with each batch and its duration in seconds."""


@dataclass(eq=False)
class _WaitingText:
    text: Rendered
    score: asyncio.Future[float]
    since: float
    request: int
    """Number of its request."""


class Batcher:
    """Scores texts in batches. Used from one event loop.

    Args:
        model: computes on `thread`.
        thread: the one thread on which torch computes.
        settings: size of batches, and how long texts wait.
        on_batch: called after each batch.
    """

    def __init__(
        self, model: RewardModel, thread: TorchThread, settings: BatchSettings, on_batch: OnBatch | None = None
    ) -> None:
        self._model = model
        self._thread = thread
        self._settings = settings
        self._batch_tokens = settings.batch_tokens or model.batch_tokens
        self._on_batch = on_batch
        self._queue: list[_WaitingText] = []
        self._round: list[_WaitingText] = []
        self._computed: list[_WaitingText] = []
        self._arrived = asyncio.Event()
        self._texts_per_second = 0.0
        self._requests = 0
        self._served: dict[int, int] = {}
        """Tokens computed so far for each waiting request."""

    @property
    def computing(self) -> int:
        """Number of texts in the batch that goes through the model now."""
        return _unfinished(self._computed)

    @property
    def waiting(self) -> int:
        """Number of texts whose batch has not begun."""
        return _unfinished(self._queue) + _unfinished(self._round) - self.computing

    async def scores(self, texts: Sequence[Rendered]) -> list[float]:
        """Return the scores, in order. When the caller is cancelled, those whose batch has not begun are dropped.

        Raises:
            OverloadedError: too many texts wait already.
            BadRequestError: the queue is too short for this many texts.
            HttpError: the model failed, or its score is not finite.
        """
        bound, ahead = self._settings.max_queue, self.waiting
        if len(texts) > bound:
            raise BadRequestError(f"{len(texts)} texts in one request, but at most {bound} may wait (max_queue)")
        if ahead + len(texts) > bound:
            wanted = ahead / self._texts_per_second if self._texts_per_second else _SHORTEST_RETRY
            retry_after = float(math.ceil(min(max(wanted, _SHORTEST_RETRY), _LONGEST_RETRY)))
            raise OverloadedError(f"{ahead} texts wait already (max_queue={bound})", retry_after=retry_after)
        loop = asyncio.get_running_loop()
        self._requests += 1
        mine = [_WaitingText(text, loop.create_future(), loop.time(), self._requests) for text in texts]
        self._queue.extend(mine)
        self._arrived.set()
        try:
            return list(await asyncio.gather(*(waiting.score for waiting in mine)))
        finally:
            for waiting in mine:
                waiting.score.cancel()

    async def run(self) -> None:
        """Score texts until cancelled."""
        while True:
            await self._arrived.wait()
            await self._wait_for_others()
            self._take_round()
            members, left = self._round, set(range(len(self._round)))
            # Smallest batch first: a short text does not wait for a long one of another request.
            texts = [member.text for member in members]
            plan = partial(self._model.batches.plan, texts, self._settings.batch_size, self._batch_tokens)
            batches = await asyncio.wrap_future(self._thread.submit(plan))
            for batch in sorted(batches, key=lambda batch: batch.tokens):
                requests = {each.request for each in members}
                others = [each for each in self._queue if each.request not in requests and not each.score.done()]
                if len(left) < len(members) and others:  # requests without a text in this round are waiting
                    break
                self._computed = [members[item] for item in batch.items if not members[item].score.done()]
                left.difference_update(batch.items)
                if self._computed:
                    await self._compute(batch)
            self._queue = [*(members[item] for item in sorted(left)), *self._queue]
            self._round = self._computed = []
            if self._queue:
                self._arrived.set()
            else:
                self._arrived.clear()

    def _take_round(self) -> None:
        """Move the texts of the next round out of the queue."""
        waiting = [each for each in self._queue if not each.score.done()]
        by_request: dict[int, deque[_WaitingText]] = {}
        for each in waiting:
            by_request.setdefault(each.request, deque()).append(each)
        if len(by_request) < 2:
            count = _ROUND * self._settings.batch_size
            self._round, self._queue, self._served = waiting[:count], waiting[count:], {}
            return
        known = [self._served[request] for request in by_request if request in self._served]
        least = min(known, default=0)  # a new request starts from the least
        self._served = {request: self._served.get(request, least) for request in by_request}
        # The request that would have the fewest tokens after its next text has the turn, so short texts come first.
        turns = [(self._served[request] + len(texts[0].text.ids), request) for request, texts in by_request.items()]
        heapq.heapify(turns)
        taken: list[_WaitingText] = []
        tokens = 0
        while turns and len(taken) < self._settings.batch_size and tokens < self._batch_tokens:
            served, request = heapq.heappop(turns)
            taken.append(by_request[request].popleft())
            tokens += served - self._served[request]
            self._served[request] = served
            if by_request[request]:
                heapq.heappush(turns, (served + len(by_request[request][0].text.ids), request))
        chosen = {id(each) for each in taken}
        self._round, self._queue = taken, [each for each in waiting if id(each) not in chosen]

    async def _wait_for_others(self) -> None:
        """Wait for further texts until the oldest has waited long enough or a batch is full."""
        loop = asyncio.get_running_loop()
        until = self._queue[0].since + self._settings.batch_wait_ms / 1000
        while (left := until - loop.time()) > 0:
            tokens = sum(len(waiting.text.ids) for waiting in self._queue)
            if len(self._queue) >= self._settings.batch_size or tokens >= self._batch_tokens:
                return
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), left)
            except asyncio.TimeoutError:
                return

    async def _compute(self, batch: ScoringBatch) -> None:
        members, started = self._computed, time.perf_counter()
        texts = [waiting.text for waiting in members]
        try:
            scores = await asyncio.wrap_future(self._thread.submit(partial(self._model.batches.scores, texts)))
        except Exception:  # for example out of memory: this batch fails, the server continues
            logger.exception("%d texts could not be scored", len(texts))
            scores = [math.nan] * len(texts)
        seconds = time.perf_counter() - started
        for waiting, score in zip(members, scores, strict=True):
            if waiting.score.done():
                continue
            if math.isfinite(score):
                waiting.score.set_result(score)
            else:
                waiting.score.set_exception(HttpError("the model gave no score; the server's log may say why"))
        self._texts_per_second += _NEWEST * (len(texts) / max(seconds, 1e-6) - self._texts_per_second)
        if self._on_batch is not None:
            self._on_batch(batch, seconds)


def _unfinished(texts: Sequence[_WaitingText]) -> int:
    return sum(not waiting.score.done() for waiting in texts)
