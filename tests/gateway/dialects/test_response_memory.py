"""What the server remembers of responses, and what it forgets."""

from __future__ import annotations

import tracemalloc

import pytest

from mini_agentic_rl.gateway.dialects.response_memory import ResponseMemory
from mini_agentic_rl.gateway.errors import NotFoundError
from mini_agentic_rl.http import BadRequestError

SCOPE = ("rollout", "attempt")


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def kept(memory, name, previous=None, text="x" * 100):
    earlier = memory.conversation(SCOPE, previous) if previous else ()
    memory.keep(SCOPE, {"id": name}, previous, [*earlier, {"role": "assistant", "content": text}])


def test_the_memory_forgets_what_was_used_longest_ago():
    memory = ResponseMemory(max_responses=2)
    kept(memory, "a")
    kept(memory, "b")
    memory.response(SCOPE, "a")
    kept(memory, "c")
    assert len(memory) == 2
    memory.response(SCOPE, "a")
    with pytest.raises(NotFoundError):
        memory.response(SCOPE, "b")


def test_the_memory_forgets_with_time():
    clock = Clock()
    memory = ResponseMemory(max_age_seconds=10, clock=clock)
    kept(memory, "a")
    kept(memory, "b")
    clock.now = 6
    memory.response(SCOPE, "a")
    clock.now = 12
    with pytest.raises(BadRequestError) as caught:
        memory.conversation(SCOPE, "b")
    assert caught.value.code == "previous_response_not_found"
    assert len(memory.conversation(SCOPE, "a")) == 1
    clock.now = 30
    kept(memory, "c")
    assert len(memory) == 1


def test_the_memory_is_bounded_in_bytes():
    memory = ResponseMemory(max_bytes=5000)
    kept(memory, "0")
    for number in range(1, 20):
        kept(memory, str(number), previous=str(number - 1), text="x" * 10)
    assert 0 < len(memory) < 5
    before = len(memory)
    kept(memory, "huge", text="x" * 6000)
    assert len(memory) == before
    memory.response(SCOPE, "19")


def test_small_responses_take_no_more_memory_than_is_counted():
    bound = 2_000_000
    memory = ResponseMemory(max_bytes=bound)
    tracemalloc.start()
    for number in range(5000):
        messages = [{"role": "user", "content": "a"} for _ in range(20)]
        memory.keep(SCOPE, {"id": str(number)}, None, messages)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(memory) < 5000
    assert bound / 2 < held < bound


def test_a_conversation_goes_on_when_what_it_came_from_is_forgotten():
    memory = ResponseMemory()
    kept(memory, "a")
    kept(memory, "b", previous="a")
    memory.forget(SCOPE, "a")
    assert len(memory.conversation(SCOPE, "b")) == 2


def test_nobody_sees_the_responses_of_another_rollout():
    memory = ResponseMemory()
    kept(memory, "a")
    for scope in (None, ("rollout", "other")):
        with pytest.raises(NotFoundError):
            memory.response(scope, "a")
        with pytest.raises(NotFoundError):
            memory.forget(scope, "a")
