"""What the engine samples on its thread, as the gateway's event loop gets it."""

from __future__ import annotations

import asyncio
import threading

from mini_agentic_rl.samplers import PolicySampler
from mini_agentic_rl.tokens import TokenDelta, TokenRequest

DELTAS = [
    TokenDelta((5,), (-0.5,), top_logprobs=(((5, -0.5),),), version=2, cached_tokens=4),
    TokenDelta((6, 7), (-1.0, -1.5), top_logprobs=(((6, -1.0),), ((7, -1.5),)), forced=(True, False), version=2),
    TokenDelta((8,), (-2.0,), top_logprobs=(((8, -2.0),),), finish_reason="stop", version=2),
]


class EagerEngine:
    """Samples everything at once, on another thread."""

    def __init__(self) -> None:
        self.cancelled = 0

    def submit(self, request, on_delta):
        thread = threading.Thread(target=lambda: [on_delta(delta) for delta in DELTAS])
        thread.start()
        thread.join()
        return request

    def cancel(self, sequence):
        self.cancelled += 1


def _sampler(engine):
    return PolicySampler(engine, base_name="base", adapters=["default"], context_length=64)


async def test_tokens_that_came_faster_than_they_are_read_are_one_delta_and_none_is_lost():
    engine = EagerEngine()
    stream = _sampler(engine).complete(TokenRequest((1, 2)))
    reading = asyncio.create_task(anext(stream))
    await asyncio.sleep(0.05)
    delta = await reading
    rest = [more async for more in stream]
    found = [delta, *rest]
    assert len(found) < len(DELTAS)
    assert sum((part.token_ids for part in found), ()) == (5, 6, 7, 8)
    assert sum((part.logprobs for part in found), ()) == (-0.5, -1.0, -1.5, -2.0)
    assert sum((part.top_logprobs for part in found), ()) == tuple(
        ((id_, -0.5 * n),) for n, id_ in enumerate((5, 6, 7, 8), 1)
    )
    assert (delta.cached_tokens, delta.version) == (4, 2)
    assert found[-1].finish_reason == "stop"
    assert sum(sum(part.forced) for part in found) == 1
    assert engine.cancelled == 0


async def test_leaving_the_stream_early_cancels_the_sampling():
    class SlowEngine(EagerEngine):
        def submit(self, request, on_delta):
            on_delta(DELTAS[0])
            return request

    engine = SlowEngine()
    stream = _sampler(engine).complete(TokenRequest((1, 2)))
    assert (await anext(stream)).token_ids == (5,)
    await stream.aclose()
    assert engine.cancelled == 1
