"""Several ranks are one policy: they sample the same tokens and end with the same weights, whatever their number."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_agentic_rl.tokens import CompletionRecord, TokenTree, divide, pack
from ranked import adapter_difference, run_on_ranks

SCRIPT = Path(__file__).parent / "ranked_run.py"


ALGORITHMS = ("grpo", "ppo")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the folder of the trainings on one rank, and of those on two."""
    folders = {count: tmp_path_factory.mktemp("ranks") / str(count) for count in (1, 2)}
    with ThreadPoolExecutor() as threads:
        runs = [threads.submit(run_on_ranks, n, SCRIPT, str(folder), *ALGORITHMS) for n, folder in folders.items()]
    for run in runs:
        run.result()
    return folders


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_two_ranks_end_with_the_weights_of_one(algorithm, trained):
    one, two = (trained[count] / algorithm for count in (1, 2))
    assert adapter_difference(one, two) < 1e-5
    rows = [[json.loads(line) for line in (f / "metrics.jsonl").open()] for f in (one, two)]
    for name in ("reward/mean", "rollout/sampled_tokens", "loss", "grad_norm", "entropy", "kl"):
        here, there = ([row[name] for row in found if name in row] for found in rows)
        assert len(here) >= 2
        assert there == pytest.approx(here, abs=1e-5), name


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_a_checkpoint_goes_on_at_another_number_of_ranks(before, after, trained, tmp_path):
    for algorithm in ALGORITHMS:
        folder = shutil.copytree(trained[before] / algorithm, tmp_path / algorithm)
        (folder / "summary.json").unlink()
        _, *later = sorted((folder / "checkpoints").iterdir())
        for checkpoint in later:
            shutil.rmtree(checkpoint)
    errors = run_on_ranks(after, SCRIPT, str(tmp_path), *ALGORITHMS, "--resume")[0][1]
    assert "step 1\n" not in errors
    for algorithm in ALGORITHMS:
        assert (tmp_path / algorithm / "summary.json").exists()
        assert adapter_difference(trained[1] / algorithm, tmp_path / algorithm) < 1e-5


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=20), min_size=1, max_size=12),
    st.integers(1, 3),
    st.integers(1, 5),
)
@settings(max_examples=150, deadline=None)
def test_each_term_is_in_one_share_with_all_that_it_looks_at(sequences, trees, parts):
    grown = [TokenTree() for _ in range(trees)]
    for index, tokens in enumerate(sequences):
        record = CompletionRecord(np.array(tokens[:1]), np.array(tokens[1:]), np.zeros(len(tokens) - 1, np.float32))
        grown[index % trees].insert(record, index)
    packed = pack(grown)
    shares = divide(packed, parts)
    assert len(shares) == parts
    there = [share for share in shares if share is not None]
    assert sorted(np.concatenate([share.terms_N for share in there]).tolist()) == list(range(packed.term_count))
    for share in there:
        for own, term in enumerate(share.terms_N):
            assert _path(share.packed, int(share.packed.token_S[own])) == _path(packed, int(packed.token_S[term]))
        paths = [_ancestors(share.packed, token) for token in range(share.packed.token_count)]
        for token, end in enumerate(share.packed.end_T):
            assert [reader for reader, path in enumerate(paths) if token in path] == list(range(token, int(end)))


def test_shares_are_as_even_as_branches_allow():
    tree = TokenTree()
    prompt = np.arange(40)
    for index in range(16):
        output = np.array([100 + index, *range(9)])
        tree.insert(CompletionRecord(prompt, output, np.zeros(10, np.float32)), index)
    packed = pack([tree])
    assert packed.token_count == 40 + 160
    assert [share.packed.token_count for share in divide(packed, 4) if share] == [80, 80, 80, 80]
    assert [share.packed.token_count for share in divide(packed, 1) if share] == [200]


def _ancestors(packed, token):
    found = [token]
    while packed.parent_T[found[-1]] >= 0:
        found.append(int(packed.parent_T[found[-1]]))
    return found


def _path(packed, token):
    return [int(packed.tokens_T[one]) for one in _ancestors(packed, token)]
