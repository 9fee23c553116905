"""A pass as tensors: each token is computed once, and its keys lie where every sequence that has it looks for them."""

from __future__ import annotations

import pytest
import torch
from fake_engine import FakeEngine, KnowingDrafts, alone, cost
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_agentic_rl.policy.attention import Scoring
from mini_agentic_rl.policy.kv_cache import KVPool
from mini_agentic_rl.policy.step_batch import StepBatch, StepPlan, pack_step


class PackingEngine(FakeEngine):
    """Writes to the cache, as keys, which token stands at which position."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.pool = KVPool(1, self.blocks, 4, 1, 2, torch.float32, torch.device("cpu"))
        self.pool.allocate()
        self.batches: list[StepBatch] = []

    def compute(self, plan: StepPlan) -> None:
        batch = pack_step(plan, self.pool, 4)
        self.batches.append(batch)
        keys_1TD = torch.stack([batch.tokens_T, batch.positions_T], -1)[None].float()
        batch.tables.attend(0, keys_1TD, keys_1TD, keys_1TD, Scoring(1.0, None, None))
        for segment in (*plan.prefill, *plan.decode):
            tokens = [*segment.sequence.tokens[: segment.stop], *segment.guessed]
            for position, index in enumerate(batch.places.drawing(segment), segment.stop - 1):
                assert batch.tokens_T[index] == tokens[position]
                assert batch.positions_T[index] == position
            assert self.held(segment.sequence, len(tokens)) == list(enumerate(tokens))

    def held(self, sequence, tokens: int) -> list[tuple[int, int]]:
        """(position, token) that the sequence finds in its slots."""
        slots = [block * 4 + offset for block in sequence.table.blocks for offset in range(4)][:tokens]
        return [(int(position), int(token)) for token, position in self.pool.keys[0, slots].tolist()]


def test_sequences_that_begin_alike_decode_side_by_side():
    engine = PackingEngine(budget=64)
    for seed, prompt in enumerate([[1] * 9, [2] * 9, [1] * 9, [2] * 9]):
        engine.add(prompt, 2, seed=seed)
    engine.run()
    decoding = sorted(engine.plans[1].decode, key=engine.batches[1].places.drawing)
    assert [segment.sequence.tokens[0] for segment in decoding] in ([1, 1, 2, 2], [2, 2, 1, 1])


@pytest.mark.parametrize(("budget", "longest"), [(3, 1), (3, 5), (64, 0), (64, 5)])
@settings(max_examples=25, deadline=None)
@given(
    requests=st.lists(
        st.tuples(
            st.integers(1, 14),  # tokens of the prompt
            st.integers(0, 2),  # which prompt: all begin alike, and two go on apart
            st.integers(1, 6),  # tokens to sample
            st.integers(0, 2),  # seed
            st.sampled_from(["default", "other"]),
            st.integers(0, 4),  # passes before it comes
        ),
        min_size=1,
        max_size=6,
    ),
    blocks=st.integers(5, 14),
    max_running=st.integers(1, 8),
)
def test_every_sequence_finds_its_own_tokens_whatever_is_shared_cut_and_preempted(
    budget, longest, requests, blocks, max_running
):
    """Each gets what it would get alone. `PackingEngine.compute` checks its keys. Five blocks of four hold any."""
    engine = PackingEngine(blocks=blocks, budget=budget, max_running=max_running, drafts=KnowingDrafts(longest))
    asked = []
    for length, branch, max_tokens, seed, adapter, passes in requests:
        for _ in range(passes):
            engine.step()
        prompt = [5, 6, 7, 8, 9, *range(10 + 50 * branch, 19 + 50 * branch)][:length]
        request = engine.add(prompt, max_tokens, seed=seed, adapter=adapter)
        asked.append((request, alone(prompt, max_tokens, seed)))
    engine.run()
    for request, expected in asked:
        assert (request.tokens, request.reason) == (expected, "length")
    # A sequence that decodes is never put off, so with fewer tokens of budget than sequences a pass is larger.
    assert all(cost(plan) <= max(budget, max_running) for plan in engine.plans)
    assert engine.cache.available == engine.cache.total
