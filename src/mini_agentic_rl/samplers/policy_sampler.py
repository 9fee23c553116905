"""The engine of this process as a sampler, and the streams that carry its tokens to the gateway's event loop.

The engine and the gateway share one interpreter, so delivering tokens has to be cheap. One wake-up of the event loop
delivers the deltas of all answers. The deltas of a joined answer are delivered in pulses: each pulse delivers the
tokens since the last pulse as one delta. The interval between pulses grows with the number of answers, which bounds the
number of events per second. First and last tokens of an answer do not wait, nor do those of a single answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

from ..http import BadRequestError, OverloadedError
from ..policy import Engine, PolicyError, PromptTooLongError, QueueFullError
from ..tokens import TokenDelta, TokenRequest
from .base import ContextLengthError, SamplerLoad

_PULSE_SECONDS: Final = 0.005
"""Seconds between two pulses, times the number of joined answers."""
_LONGEST_PULSE_SECONDS: Final = 0.25
_TURN_TOKENS: Final = 1000
"""Approximate number of tokens and alternatives that are delivered in one turn of the event loop."""


class PolicySampler:
    """Samples with the engine of this process, which runs in a thread of its own.

    Args:
        engine: samples the tokens.
        base_name: name of the model without an adapter in requests.
        adapters: names of the LoRA adapters.
        context_length: maximum number of tokens of a prompt and its continuation together.
    """

    def __init__(self, engine: Engine, *, base_name: str, adapters: Sequence[str], context_length: int) -> None:
        self._engine = engine
        self.model_names = (base_name, *adapters)
        self.context_length = context_length
        self._streams: TokenStreams | None = None

    @property
    def sampled_tokens(self) -> int:
        """See `Sampler.sampled_tokens`."""
        return self._engine.sampled_tokens

    def load(self) -> SamplerLoad:
        """See `Sampler.load`."""
        running, waiting = self._engine.sequence_counts
        cache = self._engine.cache
        idle, available = cache.idle, cache.available
        return SamplerLoad(
            sequences={"running": running, "waiting": waiting},
            kv_blocks={"used": cache.total - available, "idle": idle, "free": available - idle},
        )

    async def complete(self, request: TokenRequest) -> AsyncGenerator[TokenDelta, None]:
        """See `Sampler.complete`."""
        self._streams = TokenStreams.of_running_loop(self._streams)
        stream = self._streams.open(joined=request.delivery == "joined")
        try:
            sequence = self._engine.submit(request, stream.post)
        except PromptTooLongError as error:
            raise ContextLengthError(error.prompt_tokens, error.limit) from error
        except QueueFullError as error:
            raise OverloadedError(f"The server is busy: {error}. Try again shortly.") from error
        except PolicyError as error:
            raise BadRequestError(str(error)) from error
        finished = False
        try:
            while not finished:
                delta = await stream.get()
                finished = delta.finish_reason is not None
                yield delta
        finally:
            stream.close()
            if not finished:
                self._engine.cancel(sequence)

    async def publish(self, adapter: str, version: int, save: Callable[[Path], None]) -> None:
        """Do nothing: the engine samples with the weights of the learner."""

    def close(self) -> None:
        """Do nothing: the engine ends with its policy."""


class TokenStreams:
    """Streams of deltas to one event loop. All methods but `TokenStream.post` belong to that loop.

    Args:
        loop: the event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._posted: deque[tuple[TokenStream, TokenDelta]] = deque()
        self._wakes = False
        """True while a call of `_collect` is scheduled."""
        self._joining: set[TokenStream] = set()
        """Streams of joined answers between their first and their last delta."""
        self._due: deque[TokenStream] = deque()
        """Queue of the streams that are to be delivered."""
        self._held: set[TokenStream] = set()
        """Streams with deltas for the next pulse."""
        self._last_pulse = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def of_running_loop(cls, streams: TokenStreams | None) -> TokenStreams:
        """Return `streams`, or new ones if they belong to another loop: a restarted server has a new loop."""
        loop = asyncio.get_running_loop()
        return streams if streams is not None and streams.loop is loop else cls(loop)

    def open(self, *, joined: bool) -> TokenStream:
        """Return the stream of an answer; the caller has to close it.

        Args:
            joined: True if several deltas may be delivered as one.
        """
        return TokenStream(self, joined)

    def post(self, stream: TokenStream, delta: TokenDelta) -> None:
        """See `TokenStream.post`."""
        self._posted.append((stream, delta))
        if not self._wakes and not self.loop.is_closed():
            self._wakes = True
            self.loop.call_soon_threadsafe(self._collect)

    def forget(self, stream: TokenStream) -> None:
        """Deliver nothing more to the stream."""
        self._joining.discard(stream)
        self._held.discard(stream)

    def _collect(self) -> None:
        self._wakes = False  # a delta that is posted from now on schedules another call
        while self._posted:
            stream, delta = self._posted.popleft()
            stream.add(delta)
            if delta.finish_reason is not None:
                self.forget(stream)
                self._deliver(stream)
            elif stream in self._joining:
                self._held.add(stream)
            else:
                self._deliver(stream)
                if stream.joined and not stream.closed:
                    self._joining.add(stream)
        if self._held:
            interval = min(_LONGEST_PULSE_SECONDS, _PULSE_SECONDS * len(self._joining))
            left = self._last_pulse + interval - self.loop.time()
            if left <= 0:
                self._pulse()
            elif self._timer is None:
                self._timer = self.loop.call_later(left, self._pulse)

    def _pulse(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._last_pulse = self.loop.time()
        self._deliver(*self._held)
        self._held.clear()

    def _deliver(self, *streams: TokenStream) -> None:
        idle = not self._due
        self._due.extend(streams)
        if idle:
            self._deliver_due()

    def _deliver_due(self) -> None:
        """Deliver about `_TURN_TOKENS` tokens now, the others in the next turns of the event loop."""
        size = 0
        while self._due and size < _TURN_TOKENS:
            stream = self._due.popleft()
            size += stream.size
            stream.ready.set()
        if self._due:
            self.loop.call_soon(self._deliver_due)


class TokenStream:
    """The deltas of one answer that have not been read."""

    def __init__(self, streams: TokenStreams, joined: bool) -> None:
        self.joined = joined
        self.closed = False
        self.ready = asyncio.Event()
        """Set when the deltas may be read."""
        self._streams = streams
        self._deltas: list[TokenDelta] = []

    @property
    def size(self) -> int:
        """Number of unread tokens and alternatives."""
        return sum(len(delta.token_ids) + sum(map(len, delta.top_logprobs)) for delta in self._deltas)

    def post(self, delta: TokenDelta) -> None:
        """Send the next delta, from any thread."""
        self._streams.post(self, delta)

    def add(self, delta: TokenDelta) -> None:
        """Add a delta; called on the event loop."""
        if not self.closed:
            self._deltas.append(delta)

    async def get(self) -> TokenDelta:
        """Wait for delivered deltas and return them as one; the next call returns those of a later policy version."""
        while not self._deltas or not self.ready.is_set():
            self.ready.clear()
            await self.ready.wait()
        version = self._deltas[0].version
        end = next((n for n, delta in enumerate(self._deltas) if delta.version != version), len(self._deltas))
        deltas, self._deltas = self._deltas[:end], self._deltas[end:]
        if not self._deltas:
            self.ready.clear()
        return deltas[0] if len(deltas) == 1 else _joined(deltas)

    def close(self) -> None:
        """Drop all later deltas."""
        self.closed = True
        self._streams.forget(self)


def _joined(deltas: Sequence[TokenDelta]) -> TokenDelta:
    first, last = deltas[0], deltas[-1]
    forced: tuple[bool, ...] = ()
    if any(delta.forced for delta in deltas):
        forced = tuple(chain.from_iterable(delta.forced or (False,) * len(delta.token_ids) for delta in deltas))
    return TokenDelta(
        token_ids=tuple(chain.from_iterable(delta.token_ids for delta in deltas)),
        logprobs=tuple(chain.from_iterable(delta.logprobs for delta in deltas)),
        top_logprobs=tuple(chain.from_iterable(delta.top_logprobs for delta in deltas)),
        forced=forced,
        finish_reason=last.finish_reason,
        version=first.version,
        cached_tokens=max(delta.cached_tokens for delta in deltas),
        failure=last.failure,
    )
