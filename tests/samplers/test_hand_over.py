"""Tokens on their way to the event loop: one wake-up for all answers, pulses for their middle where they are joined."""

from __future__ import annotations

import asyncio

import pytest
from openai import AsyncOpenAI

from gateway.tiny_server import tiny_server
from mini_agentic_rl.samplers import HandOver
from mini_agentic_rl.tokens import TokenDelta

LONG = 1.0
"""Seconds after which every pulse has come."""


class Timer:
    def __init__(self, when, callback):
        self.when = when
        self.cancelled = False
        self._callback = callback

    def cancel(self):
        self.cancelled = True

    def run(self):
        if not self.cancelled:
            self._callback()


class Clock:
    """What a hand-over uses of an event loop; time passes when it is told to."""

    def __init__(self):
        self.now = 100.0
        self.wakes = 0
        self._soon = []
        self._timers = []

    def time(self):
        return self.now

    def is_closed(self):
        return False

    def call_soon_threadsafe(self, callback):
        self.wakes += 1
        self._soon.append(callback)

    def call_later(self, delay, callback):
        timer = Timer(self.now + delay, callback)
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
def hand_over(clock):
    return HandOver(clock)


def say(clock, inboxes, token, reason=None):
    """One step of an engine: a token for each answer."""
    for inbox in inboxes:
        inbox.post(TokenDelta((token,), (-token / 10,), finish_reason=reason))
    clock.step()


async def got(inbox):
    """The ids that may be read now; None where nothing may."""
    return (await inbox.get()).token_ids if inbox.ready.is_set() else None


async def begun(clock, hand_over, count):
    """Answers that are joined, whose first two tokens have been read."""
    inboxes = [hand_over.open(joined=True) for _ in range(count)]
    for token in (1, 2):
        say(clock, inboxes, token)
        clock.advance(LONG)
        assert [await got(inbox) for inbox in inboxes] == [(token,)] * count
    return inboxes


async def test_the_tokens_of_all_answers_come_with_one_wake_up(clock, hand_over):
    inboxes = [hand_over.open(joined=False) for _ in range(32)]
    for token in (1, 2, 3):
        say(clock, inboxes, token)
        assert clock.wakes == token
        assert [await got(inbox) for inbox in inboxes] == [(token,)] * 32


async def test_the_middle_of_many_answers_goes_on_together_and_every_token_is_in_it(clock, hand_over):
    inboxes = await begun(clock, hand_over, 32)
    say(clock, inboxes, 3)
    assert [await got(inbox) for inbox in inboxes] == [(3,)] * 32  # the last pulse is long ago
    for token in (4, 5, 6):
        clock.advance(0.02)
        say(clock, inboxes, token)
        assert [await got(inbox) for inbox in inboxes] == [None] * 32
    clock.advance(LONG)
    for inbox in inboxes:
        delta = await inbox.get()
        assert (delta.token_ids, delta.logprobs) == ((4, 5, 6), (-0.4, -0.5, -0.6))
    clock.advance(LONG)
    assert [await got(inbox) for inbox in inboxes] == [None] * 32


async def test_the_first_tokens_and_the_last_wait_for_nothing(clock, hand_over):
    inboxes = await begun(clock, hand_over, 32)
    say(clock, inboxes, 3)
    assert [await got(inbox) for inbox in inboxes] == [(3,)] * 32
    late = hand_over.open(joined=True)
    say(clock, [*inboxes, late], 4)
    assert await got(late) == (4,)
    assert await got(inboxes[0]) is None
    say(clock, inboxes[:1], 5, "stop")
    assert await got(inboxes[0]) == (4, 5)
    assert await got(inboxes[1]) is None


async def test_cached_tokens_are_kept_whichever_delta_tells_them(clock, hand_over):
    """An engine tells with the first tokens how many it found in its cache, a vLLM after the last."""
    for first, last in ((3, 0), (0, 3)):
        inbox = hand_over.open(joined=True)
        inbox.post(TokenDelta((1,), (-0.1,), cached_tokens=first))
        inbox.post(TokenDelta((2,), (-0.2,), finish_reason="stop", cached_tokens=last))
        clock.step()
        assert (await inbox.get()).cached_tokens == 3


async def test_an_answer_that_is_wanted_step_by_step_never_waits(clock, hand_over):
    inboxes = await begun(clock, hand_over, 32)
    stepwise = hand_over.open(joined=False)
    for token in (3, 4, 5):
        say(clock, [*inboxes, stepwise], token)
        assert await got(stepwise) == (token,)


async def test_one_answer_alone_gets_each_token_of_an_engine_at_once(clock, hand_over):
    (alone,) = await begun(clock, hand_over, 1)
    for token in (3, 4, 5):
        clock.advance(0.01)
        say(clock, [alone], token)
        assert await got(alone) == (token,)


async def test_answers_that_are_left_no_longer_slow_the_others(clock, hand_over):
    inboxes = await begun(clock, hand_over, 32)
    for left in inboxes[1:]:
        left.close()
        say(clock, [left], 3)  # the engine learns of it with its next step only
    say(clock, inboxes[:1], 3)
    assert await got(inboxes[0]) == (3,)
    clock.advance(0.01)
    say(clock, inboxes[:1], 4)
    assert await got(inboxes[0]) == (4,)


async def test_streams_at_once_carry_every_token_in_fewer_events(monkeypatch):
    # Further apart than a loaded machine takes for a few steps of the engine; nobody waits for a pulse at the end.
    monkeypatch.setattr("mini_agentic_rl.samplers.hand_over._APART_SECONDS", 1.0)
    monkeypatch.setattr("mini_agentic_rl.samplers.hand_over._LONGEST_SECONDS", 5.0)

    async def ids_of(client, number):
        """Ids, log-probabilities and events of one stream."""
        ids, logprobs, events = [], [], 0
        stream = await client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": f"Question {number}?"}],
            stream=True,
            seed=number,
            max_tokens=40,
            logprobs=True,
            extra_body={"return_token_ids": True, "ignore_eos": True},
        )
        async for chunk in stream:
            (choice,) = chunk.choices
            ids += choice.model_extra.get("token_ids") or []
            logprobs += [entry.logprob for entry in choice.logprobs.content] if choice.logprobs else []
            events += 1
        return ids, logprobs, events

    with tiny_server() as tiny:
        async with AsyncOpenAI(base_url=tiny.server.endpoint, api_key="none", max_retries=0) as client:
            found = await asyncio.gather(*(ids_of(client, number) for number in range(24)))
        await asyncio.to_thread(tiny.wait_for_rest)
        assert tiny.server.service.counters.completion_tokens == 24 * 40
    assert all(len(ids) == len(logprobs) == 40 for ids, logprobs, _ in found)
    assert all(events >= 3 for _, _, events in found)
    assert sum(events for _, _, events in found) < 24 * 40 / 2
