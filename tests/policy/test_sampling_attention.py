"""Keys that are read once for several sequences give what reading them for each would give."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_agentic_rl.policy.attention import Scoring
from mini_agentic_rl.policy.kv_cache import KVPool
from mini_agentic_rl.policy.sampling_attention import DecodeTables, SharedKeys, shared_runs

LENGTHS = torch.tensor([21, 14, 17, 25, 30])
# Rows 0 to 4 begin alike for 4 tokens, 0 and 1 for 8 more, 2 to 4 for 6 more, of which 3 and 4 share yet 5; row 0 has 5
# more in a run of its own.
RUNS = [(slice(0, 5), 0, 4), (slice(0, 2), 4, 12), (slice(2, 5), 4, 10), (slice(3, 5), 10, 15), (slice(0, 1), 12, 17)]


@pytest.fixture
def pool() -> KVPool:
    torch.manual_seed(0)
    made = KVPool(1, 50, 4, 2, 8, torch.float32, torch.device("cpu"))
    made.allocate()
    made.keys.normal_()
    made.values.normal_()
    return made


@pytest.mark.parametrize("runs", [0, 1, 2, 4, 5])
@pytest.mark.parametrize(
    "scoring", [Scoring(0.3, None, None), Scoring(0.3, 9, None), Scoring(0.3, None, 1.5), Scoring(0.3, 5, 1.5)]
)
def test_shared_keys_give_the_attention_of_each_sequence_alone(pool, runs, scoring):
    slots = torch.stack([torch.randperm(200)[:30] for _ in LENGTHS])
    first = torch.zeros(5, dtype=torch.long)
    shared = []
    for rows, start, stop in RUNS[:runs]:
        slots[rows, start:stop] = slots[rows.start, start:stop].clone()
        first[rows] = stop
        shared.append(SharedKeys(rows, slots[rows.start, start:stop], torch.arange(start, stop)))
    width = int((LENGTHS - first).max())
    own = slots.gather(1, (first[:, None] + torch.arange(width)).clamp(max=29))
    q = torch.randn(6, len(LENGTHS), 8)
    together = DecodeTables(shared, own, first, LENGTHS).attend(pool, 0, q, scoring)
    for row, length in enumerate(LENGTHS.tolist()):
        start = 0 if scoring.window is None else max(0, length - scoring.window)
        keys, values = (part.transpose(0, 1).repeat_interleave(3, 0) for part in pool.read(0, slots[row, start:length]))
        scores = q[:, row, None] @ keys.transpose(1, 2) * scoring.scale
        if scoring.softcap is not None:
            scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
        torch.testing.assert_close(together[:, row], (scores.softmax(-1) @ values)[:, 0], atol=1e-6, rtol=1e-5)


@given(st.lists(st.lists(st.integers(0, 2), max_size=12), min_size=1, max_size=9), st.sampled_from([1, 16, 64]))
@settings(max_examples=200, deadline=None)
def test_runs_cover_what_their_sequences_have_in_common(choices, block_size):
    # The id of a block is its whole history, so that equal ids mean equal beginnings, as in the cache.
    tables = sorted([hash((*choice[: n + 1],)) for n in range(len(choice))] for choice in choices)
    held = [0] * len(tables)
    for run in shared_runs(tables, block_size):
        rows = range(run.rows.start, run.rows.stop)
        assert run.last > run.first
        for row in rows:
            assert held[row] == run.first
            assert tables[row][run.first : run.last] == tables[rows[0]][run.first : run.last]
            held[row] = run.last
    if block_size == 64:  # then whatever two have in common is worth sharing
        for row, (one, other) in enumerate(pairwise(tables)):
            common = sum(a == b for a, b in zip(one, other, strict=False))
            assert min(held[row], held[row + 1]) >= common


def test_what_a_long_sequence_has_more_than_the_rest_is_a_run_of_its_own():
    group = [[*range(50), 100 + sample] for sample in range(8)]
    left_over = [*range(200, 250), 300]
    runs = {(run.rows.start, run.rows.stop, run.first, run.last) for run in shared_runs([*group, left_over], 8)}
    assert runs == {(0, 8, 0, 50), (8, 9, 0, 50)}


def test_sequences_of_much_the_same_length_have_no_runs_of_their_own():
    tables = [[100 * row + block for block in range(50 + row)] for row in range(8)]
    assert shared_runs(tables, 8) == []
