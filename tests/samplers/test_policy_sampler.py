"""Tokens of the engine on their way to the event loop: one wake-up for all answers, pulses where they are joined."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from mini_agentic_rl.samplers import PolicySampler, TokenStreams
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


LONG = 1.0
"""Seconds after which every pulse has come."""


class Clock:
    """What token streams use of an event loop; time passes when it is told to."""

    def __init__(self):
        self.now, self.wakes = 100.0, 0
        self._soon, self._timers = [], []

    def time(self):
        return self.now

    def is_closed(self):
        return False

    def call_soon_threadsafe(self, callback):
        self.wakes += 1
        self._soon.append(callback)

    def call_later(self, delay, callback):
        timer = SimpleNamespace(when=self.now + delay, run=callback)
        timer.cancel = lambda: setattr(timer, "run", lambda: None)
        self._timers.append(timer)
        return timer

    def step(self):
        while self._soon:
            self._soon.pop(0)()

    def advance(self, seconds):
        self.now += seconds
        due = [timer for timer in self._timers if timer.when <= self.now]
        self._timers = [timer for timer in self._timers if timer.when > self.now]
        for timer in due:
            timer.run()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def streams(clock):
    return TokenStreams(clock)


def say(clock, answers, token, reason=None):
    """One step of an engine: a token for each answer."""
    for answer in answers:
        answer.post(TokenDelta((token,), (-token / 10,), finish_reason=reason))
    clock.step()


async def got(answer):
    """The ids that may be read now; None where nothing may."""
    return (await answer.get()).token_ids if answer.ready.is_set() else None


async def begun(clock, streams, count):
    """Answers that are joined, whose first two tokens have been read."""
    answers = [streams.open(joined=True) for _ in range(count)]
    for token in (1, 2):
        say(clock, answers, token)
        clock.advance(LONG)
        assert [await got(answer) for answer in answers] == [(token,)] * count
    return answers


async def test_the_tokens_of_all_answers_come_with_one_wake_up(clock, streams):
    answers = [streams.open(joined=False) for _ in range(32)]
    for token in (1, 2, 3):
        say(clock, answers, token)
        assert clock.wakes == token
        assert [await got(answer) for answer in answers] == [(token,)] * 32


async def test_the_middle_of_many_answers_goes_on_together_and_every_token_is_in_it(clock, streams):
    answers = await begun(clock, streams, 32)
    say(clock, answers, 3)
    assert [await got(answer) for answer in answers] == [(3,)] * 32  # the last pulse is long ago
    for token in (4, 5, 6):
        clock.advance(0.02)
        say(clock, answers, token)
        assert [await got(answer) for answer in answers] == [None] * 32
    clock.advance(LONG)
    for answer in answers:
        delta = await answer.get()
        assert (delta.token_ids, delta.logprobs) == ((4, 5, 6), (-0.4, -0.5, -0.6))
    clock.advance(LONG)
    assert [await got(answer) for answer in answers] == [None] * 32


async def test_the_first_tokens_and_the_last_wait_for_nothing(clock, streams):
    answers = await begun(clock, streams, 32)
    say(clock, answers, 3)
    assert [await got(answer) for answer in answers] == [(3,)] * 32
    late = streams.open(joined=True)
    say(clock, [*answers, late], 4)
    assert await got(late) == (4,)
    assert await got(answers[0]) is None
    say(clock, answers[:1], 5, "stop")
    assert await got(answers[0]) == (4, 5)
    assert await got(answers[1]) is None


async def test_cached_tokens_are_kept_whichever_delta_tells_them(clock, streams):
    """An engine tells with the first tokens how many it found in its cache, a vLLM after the last."""
    for first, last in ((3, 0), (0, 3)):
        answer = streams.open(joined=True)
        answer.post(TokenDelta((1,), (-0.1,), cached_tokens=first))
        answer.post(TokenDelta((2,), (-0.2,), finish_reason="stop", cached_tokens=last))
        clock.step()
        assert (await answer.get()).cached_tokens == 3


async def test_an_answer_alone_or_one_that_is_not_joined_never_waits(clock, streams):
    (alone,) = await begun(clock, streams, 1)
    for token in (3, 4, 5):
        clock.advance(0.01)
        say(clock, [alone], token)
        assert await got(alone) == (token,)
    others = await begun(clock, streams, 32)
    stepwise = streams.open(joined=False)
    for token in (3, 4, 5):
        say(clock, [*others, stepwise], token)
        assert await got(stepwise) == (token,)


async def test_answers_that_are_left_no_longer_slow_the_others(clock, streams):
    answers = await begun(clock, streams, 32)
    for left in answers[1:]:
        left.close()
        say(clock, [left], 3)  # the engine learns of it with its next step only
    say(clock, answers[:1], 3)
    assert await got(answers[0]) == (3,)
    clock.advance(0.01)
    say(clock, answers[:1], 4)
    assert await got(answers[0]) == (4,)
