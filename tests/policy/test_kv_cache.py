"""The block cache's books."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mini_agentic_rl.policy.kv_cache import BlockCache

ROOT = ("default", 0)


def test_blocks_are_taken_back_from_the_least_recently_used():
    cache = BlockCache(4, 2)
    for start in (0, 10):
        tokens = [start, start + 1, start + 2, start + 3]
        table = cache.open(ROOT, tokens)
        cache.grow(table, 4)
        cache.publish(table, tokens, 4)
        cache.close(table)
    table = cache.open(ROOT, [20, 21, 22])
    assert cache.grow(table, 3)
    assert len(cache.open(ROOT, [10, 11, 12, 13, 14]).blocks) == 2
    assert cache.open(ROOT, [0, 1, 2, 3, 4]).blocks == []


def test_growing_beyond_the_cache_changes_nothing():
    cache = BlockCache(3, 2)
    table = cache.open(ROOT, [1])
    assert not cache.grow(table, 7)
    assert (table.blocks, cache.available) == ([], 3)


class Books(RuleBasedStateMachine):
    """Random sequences come, grow and go; no block is ever lost or held twice."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = BlockCache(12, 2)
        self.open: list[tuple[object, list[int]]] = []
        self.version = 0

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=10))
    def start(self, tokens):
        table = self.cache.open(("default", self.version), tokens)
        if self.cache.grow(table, len(tokens)):
            self.cache.publish(table, tokens, len(tokens))
            self.open.append((table, tokens))
        else:
            self.cache.close(table)

    @precondition(lambda self: self.open)
    @rule(index=st.integers(0, 99), token=st.integers(0, 1))
    def decode(self, index, token):
        table, tokens = self.open[index % len(self.open)]
        if self.cache.grow(table, len(tokens) + 1):
            tokens.append(token)
            self.cache.publish(table, tokens, len(tokens))

    @precondition(lambda self: self.open)
    @rule(index=st.integers(0, 99))
    def finish(self, index):
        table, _ = self.open.pop(index % len(self.open))
        self.cache.close(table)

    @rule()
    def new_version(self):
        self.version += 1
        self.cache.forget("default")

    @invariant()
    def every_block_is_free_or_held(self):
        held = {block for table, _ in self.open for block in table.blocks}
        assert self.cache.available == 12 - len(held)
        for table, _ in self.open:
            assert len(set(table.blocks)) == len(table.blocks)


Books.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBooks = Books.TestCase
