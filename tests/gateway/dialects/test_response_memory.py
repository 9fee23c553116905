"""The kept responses and their conversations, and their bounds."""

from __future__ import annotations

import tracemalloc

import pytest

from mini_agentic_rl.gateway.dialects.responses_input import ResponseMemory
from mini_agentic_rl.gateway.errors import NotFoundError
from mini_agentic_rl.http import BadRequestError

SCOPE = ("rollout", "attempt")


def keep(memory, name, previous=None, text="x" * 100):
    earlier = memory.conversation(SCOPE, previous) if previous else ()
    memory.keep(SCOPE, {"id": name}, previous, [*earlier, {"role": "assistant", "content": text}])


def test_the_least_recently_used_conversation_is_dropped_first():
    memory = ResponseMemory(max_responses=2)
    keep(memory, "a")
    keep(memory, "b", previous="a")
    memory.conversation(SCOPE, "a")
    keep(memory, "c", previous="a")
    assert len(memory) == 2
    assert len(memory.conversation(SCOPE, "c")) == 2
    with pytest.raises(BadRequestError) as caught:
        memory.conversation(SCOPE, "b")
    assert caught.value.code == "previous_response_not_found"


def test_the_memory_is_bounded_in_bytes():
    memory = ResponseMemory(max_bytes=5000)
    keep(memory, "0")
    for number in range(1, 20):
        keep(memory, str(number), previous=str(number - 1), text="x" * 10)
    assert 0 < len(memory) < 5
    before = len(memory)
    keep(memory, "huge", text="x" * 6000)
    assert len(memory) == before
    assert memory.conversation(SCOPE, "19")


def test_small_conversations_take_no_more_memory_than_is_counted():
    bound = 2_000_000
    memory = ResponseMemory(max_bytes=bound)
    tracemalloc.start()
    for number in range(1500):
        memory.keep(SCOPE, {"id": str(number)}, None, [{"role": "user", "content": "a"} for _ in range(20)])
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(memory) < 1500
    assert bound / 2 < held < bound


def test_a_conversation_goes_on_when_the_response_before_it_is_deleted():
    memory = ResponseMemory()
    keep(memory, "a")
    keep(memory, "b", previous="a")
    memory.delete(SCOPE, "a")
    with pytest.raises(NotFoundError):
        memory.response(SCOPE, "a")
    assert len(memory.conversation(SCOPE, "b")) == 2


def test_an_owner_sees_and_forgets_its_own_conversations_only():
    memory = ResponseMemory()
    keep(memory, "a")
    memory.keep(None, {"id": "b"}, None, [{"role": "user", "content": "hi"}])
    for scope, name in ((None, "a"), (("rollout", "other"), "a"), (SCOPE, "b")):
        with pytest.raises(BadRequestError):
            memory.conversation(scope, name)
        for look_up in (memory.response, memory.input_items, memory.delete):
            with pytest.raises(NotFoundError):
                look_up(scope, name)
    memory.forget(SCOPE)
    with pytest.raises(BadRequestError):
        memory.conversation(SCOPE, "a")
    assert memory.conversation(None, "b")
