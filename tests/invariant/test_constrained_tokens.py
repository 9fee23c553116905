"""Under a constraint: only allowed tokens, log-probabilities of the whole distribution, nothing trained where there was
no choice, and nothing changed for the requests beside it."""

from __future__ import annotations

import threading
from itertools import takewhile

import numpy as np
import pytest

from helpers import pack_rollouts, sample_all, tiny_policy
from mini_agentic_rl.algorithm.advantages import group_normalized
from mini_agentic_rl.algorithm.batch import make_batch
from mini_agentic_rl.algorithm.groups import Group, Trajectory
from mini_agentic_rl.policy import EngineSettings, LearnerSettings
from mini_agentic_rl.tokens import (
    CompletionRecord,
    ConstraintError,
    SamplingParams,
    TokenDelta,
    TokenRequest,
)

END = 5


class Pattern:
    """Allows the ids of one set after another, then the end token alone; refuses to go on after a wrong one."""

    def __init__(self, sets, words=10):
        self._sets = [*sets, {END}]
        self._words = words
        self._at = 0

    def allowed(self, vocabulary):
        if self._at is None:
            raise ConstraintError("out of step")
        bits = np.zeros(self._words * 32, np.uint8)
        bits[list(self._sets[self._at])] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)

    def certain(self, vocabulary):
        if self._at is None:
            return []
        return [
            min(ids) for ids in takewhile(lambda ids: len(ids) == 1 and min(ids) < vocabulary, self._sets[self._at :])
        ]

    def advance(self, token_id):
        self._at = self._at + 1 if self._at is not None and token_id in self._sets[self._at] else None


class Unforeseeing(Pattern):
    """The same, which does not say what is certain."""

    def certain(self, vocabulary):
        return []


def sets_of(seed, length):
    """Sets of one, two and many ids, in no order."""
    rng = np.random.default_rng(seed)
    return [
        set(rng.choice(np.arange(10, 300), int(rng.choice([1, 2, 90])), replace=False).tolist()) for _ in range(length)
    ]


def constrained(policy, count=4, length=12, **params):
    sets = [sets_of(i, length) for i in range(count)]
    sampling = [SamplingParams(max_tokens=length + 1, seed=i, stop_token_ids=(END,), **params) for i in range(count)]
    prompts = [[i + 1] * 9 for i in range(count)]
    records = sample_all(policy, prompts, sampling, constraints=[lambda s=s: Pattern(s) for s in sets])
    for record, allowed in zip(records, sets, strict=True):
        assert record.finish_reason == "stop"
        assert all(token in ids for token, ids in zip(record.output_ids.tolist(), [*allowed, {END}], strict=True))
        assert record.forced.tolist() == [len(ids) == 1 for ids in [*allowed, {END}]]
    return records


def difference(policy, records):
    packed = pack_rollouts([[record] for record in records])
    assert packed.term_count == sum(int((~record.forced).sum()) for record in records)
    learner = policy.run(lambda: policy.learner(LearnerSettings()))
    return np.abs(policy.run(lambda: learner.logprobs(packed)).numpy() - packed.behaviour_logprobs_S).max()


@pytest.mark.parametrize("params", [{}, {"temperature": 0.6}, {"temperature": 0.0}, {"top_p": 0.7, "top_k": 20}])
def test_recorded_log_probabilities_are_the_learners_under_a_mask(params):
    with tiny_policy() as policy:
        assert difference(policy, constrained(policy, **params)) < 1e-4


def test_tokens_that_leave_no_choice_take_one_pass_together():
    length, forced = 20, {n: [{n + 30}] * 6 for n in range(4)}
    sets = [[*sets_of(n, 5), *forced[n], *sets_of(n + 50, length - 11)] for n in range(4)]
    sampling = [SamplingParams(max_tokens=length + 1, seed=n, stop_token_ids=(END,)) for n in range(4)]
    records, passes = [], []
    for constraint in (Pattern, Unforeseeing):
        with tiny_policy() as policy:
            makers = [lambda s=s, constraint=constraint: constraint(s) for s in sets]
            records.append(sample_all(policy, [[n + 1] * 9 for n in range(4)], sampling, constraints=makers))
            passes.append(policy.engine.counters.passes)
            assert difference(policy, records[-1]) < 1e-4
    assert passes[0] <= passes[1] - 5
    for one, other in zip(*records, strict=True):
        assert one.output_ids.tolist() == other.output_ids.tolist()
        assert one.forced.tolist() == other.forced.tolist()
        assert np.abs(one.logprobs - other.logprobs).max() < 1e-5


def test_a_constraint_stays_in_step_when_its_sequence_gives_its_blocks_back():
    with tiny_policy(engine=EngineSettings(block_size=4, cache_mib=1, max_batch_tokens=64)) as policy:
        expected = constrained(policy, length=24)
        policy.run(policy.engine.cache.drop_idle)
        tight = policy.engine.cache
        tight._free = tight._free[:14]  # blocks for one and a half of these sequences
        squeezed = constrained(policy, length=24)
        for one, other in zip(expected, squeezed, strict=True):
            assert one.output_ids.tolist() == other.output_ids.tolist()
        assert difference(policy, squeezed) < 1e-4


def test_sequences_with_one_history_obey_their_own_constraints():
    with tiny_policy() as policy:
        sets = [[{20, 21}, {30 + i}] for i in range(4)]
        params = [SamplingParams(max_tokens=3, seed=7, stop_token_ids=(END,))] * 4
        records = sample_all(policy, [[1, 2, 3]] * 4, params, constraints=[lambda s=s: Pattern(s) for s in sets])
        assert [record.output_ids[1:].tolist() for record in records] == [[30 + i, END] for i in range(4)]
        assert len({int(record.output_ids[0]) for record in records}) == 1


def test_requests_beside_constrained_ones_are_sampled_as_if_alone():
    prompts = [[i % 5 + 1] * (5 + i % 3) for i in range(32)]
    params = [SamplingParams(max_tokens=13, seed=i, stop_token_ids=(END,), top_logprobs=2) for i in range(32)]
    constraints = [None if i % 2 else (lambda i=i: Pattern(sets_of(i, 12))) for i in range(32)]
    with tiny_policy() as policy:
        mixed = sample_all(policy, prompts, params, constraints=constraints)
        policy.run(policy.engine.cache.drop_idle)
        free = [i for i in range(32) if i % 2]
        alone = [sample_all(policy, [prompts[i]], [params[i]])[0] for i in free]
    for i, record in zip(free, alone, strict=True):
        assert mixed[i].output_ids.tolist() == record.output_ids.tolist()
        assert np.abs(mixed[i].logprobs - record.logprobs).max() < 1e-5
        assert mixed[i].forced is None
    assert all(mixed[i].forced is not None for i in range(0, 32, 2))


@pytest.mark.parametrize(("words", "largest"), [(1, 31), (10, 299), (100, 299)])
def test_a_mask_may_be_shorter_or_longer_than_the_models_vocabulary(words, largest):
    everything = set(range(6, words * 32))
    with tiny_policy() as policy:
        params = [SamplingParams(max_tokens=9, seed=i, stop_token_ids=(END,)) for i in range(8)]
        constraints = [lambda: Pattern([everything] * 8, words)] * 8
        records = sample_all(policy, [[1, 2]] * 8, params, constraints=constraints)
    drawn = [token for record in records for token in record.output_ids[:-1].tolist()]
    assert max(drawn) <= largest
    assert len(set(drawn)) > 10


@pytest.mark.parametrize("impossible", [set(), {310}])  # the vocabulary has 300 ids
def test_a_constraint_that_allows_nothing_ends_its_own_request_with_a_reason(impossible):
    deltas: list[TokenDelta] = []
    done = threading.Event()

    def on_delta(delta):
        deltas.append(delta)
        if delta.finish_reason is not None:
            done.set()

    with tiny_policy() as policy:
        request = TokenRequest((1, 2), SamplingParams(max_tokens=9), constraint=lambda: Pattern([{20}, impossible]))
        policy.engine.submit(request, on_delta)
        beside = constrained(policy, count=1)[0]
        assert done.wait(30)
        assert policy.engine.sequence_counts == (0, 0)
        assert policy.engine.cache.available == policy.engine.cache.total
    assert beside.finish_reason == "stop"
    assert [token for delta in deltas for token in delta.token_ids] == [20]
    assert deltas[-1].finish_reason == "cancelled"
    assert "no token that may come next" in deltas[-1].failure


def _record(prompt, output, forced):
    return CompletionRecord(
        np.array(prompt), np.array(output), -np.arange(len(output), dtype=np.float32), forced=np.array(forced, bool)
    )


def test_a_forced_token_makes_no_term_and_does_not_count_for_the_weights():
    half = _record([1, 2], [3, 4, 5, 6], [True, False, True, False])
    whole = _record([1, 2], [7, 8], [True, True])
    free = _record([1, 2, 7, 8], [9], [False])
    other = _record([1, 2], [3, 9], [False, False])
    group = Group(
        "task", [Trajectory("a", [half], 1.0), Trajectory("b", [whole, free], 0.0), Trajectory("c", [other], 0.0)]
    )
    batch = make_batch(
        [group], group_normalized, "sequence", max_length=9, mask_truncated=False, keep_zero_advantage=False
    )
    terms = batch.packed.tokens_T[batch.packed.token_S].tolist()
    assert terms == [4, 6, 9, 3, 9]
    assert batch.packed.behaviour_logprobs_S.tolist() == [-1.0, -3.0, 0.0, 0.0, -1.0]
    assert [round(float(a), 3) for a in batch.inputs.advantages_S[[0, 2]]] == [1.414, -0.707]
    totals = [float(batch.inputs.weights_S[batch.packed.trajectory_S == i].sum()) for i in range(3)]
    np.testing.assert_allclose(totals, [1 / 3] * 3, rtol=1e-6)


def test_rollouts_with_nothing_but_forced_tokens_are_not_trained():
    records = [_record([1], [token], [True]) for token in (2, 3)]
    group = Group("task", [Trajectory(str(i), [record], float(i)) for i, record in enumerate(records)])
    options = {"max_length": 9, "mask_truncated": False, "keep_zero_advantage": False}
    assert make_batch([group], group_normalized, "token", **options) is None
    with pytest.raises(ValueError, match="forced"):
        pack_rollouts([records[:1]])


def test_a_record_with_marks_for_other_tokens_is_refused():
    with pytest.raises(ValueError, match="2 sampled tokens but 1 marks"):
        _record([1], [2, 3], [True])
