"""Decode steps over fixed buffers, filled up to a size, draw what steps of the exact size draw."""

from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import sample_all, tiny_policy
from mini_agentic_rl.policy import EngineSettings, LoraSettings, Policy, kernels, load_model
from mini_agentic_rl.policy.engine import Engine
from mini_agentic_rl.policy.static_decoding import READ, step_size
from mini_agentic_rl.tokens import SamplingParams
from tiny import tiny_model

PROMPTS = [[7, 8, 9] * 9, [50 + n for n in range(70)], [3], [50 + n for n in range(70)], [4, 5], [6] * 40, [9, 8]]


@pytest.fixture(autouse=True)
def _torch_computes(monkeypatch):
    """As on a GPU."""
    monkeypatch.setattr(kernels, "usable", lambda *_: False)


def _repeated(call):
    """What stands in for a CUDA graph: the call itself."""
    call()
    return call


def _writes_nothing(call):
    call()
    return lambda: None


def _fails(call):
    """As CUDA does where a step waits for a result."""
    raise RuntimeError("operation not permitted when stream is capturing")


def _recording(policy: Policy, record=_repeated) -> Policy:
    """The policy with an engine that records its decode steps."""
    recorder = SimpleNamespace(record=record)
    policy.engine = Engine(policy.model, policy._thread, policy.engine.settings, recorder)
    return policy


def _counters(policy: Policy) -> dict[str, int]:
    return policy.run(lambda: policy.engine.decoding.counters)


def _alike(one, other):
    for left, right in zip(one, other, strict=True):
        assert left.output_ids.tolist() == right.output_ids.tolist()
        assert left.finish_reason == right.finish_reason
        np.testing.assert_allclose(left.logprobs, right.logprobs, atol=1e-5, rtol=0)


def _with_adapters(names=("one", "two")) -> Policy:
    model = load_model(tiny_model(), lora=LoraSettings(), adapters=dict.fromkeys(names))
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.base.named_parameters():
        if "lora_B" in name:
            parameter.data.copy_(torch.empty(parameter.shape).normal_(0, 0.2, generator=generator))
    return Policy(model, EngineSettings(block_size=4, cache_mib=1, max_batch_tokens=96))


def test_prompts_that_are_read_beside_are_rows_of_the_same_step():
    """Later turns begin with a few new tokens behind a history that is cached, as rollouts of several turns do."""
    params = [SamplingParams(temperature=0.9, max_tokens=3 + n % 4, seed=n) for n in range(8)]

    def turns(policy: Policy) -> list:
        prompts, taken = [PROMPTS[n % 7] for n in range(8)], []
        for _ in range(4):
            taken += (found := sample_all(policy, prompts, params))
            prompts = [
                [*prompt, *record.output_ids.tolist(), *range(20, 26 + n)]
                for n, (prompt, record) in enumerate(zip(prompts, found, strict=True))
            ]
        return taken

    engine = EngineSettings(block_size=4, cache_mib=1, max_batch_tokens=96, max_draft_tokens=0)
    with tiny_policy(engine=engine) as policy:
        expected = turns(policy)
        _recording(policy)
        found = turns(policy)
        passes = policy.run(lambda: policy.engine.counters.passes)
        counters = _counters(policy)
        assert counters["plain"] + counters["replayed"] == passes
        assert counters["replayed"] > 0
    _alike(found, expected)


def test_steps_that_are_padded_draw_the_same_tokens():
    """Histories of many lengths, two of them the same, which then share a row, and draft tokens."""
    engine = EngineSettings(block_size=7, cache_mib=1, max_batch_tokens=96, max_draft_tokens=8)
    params = [
        SamplingParams(temperature=0.0 if n in (1, 3) else 0.9, max_tokens=6 + 5 * n, seed=n)
        for n in range(len(PROMPTS))
    ]
    with tiny_policy(engine=engine) as policy:
        expected = sample_all(policy, PROMPTS, params)
        _recording(policy)
        policy.engine._drafts.cost.share_of_row = lambda rows: 0.0
        found = sample_all(policy, PROMPTS, params)
        counters = _counters(policy)
        assert counters["replayed"] > counters["plain"] > 0
        assert counters["recorded"] > 1
        assert policy.run(lambda: policy.engine.counters.guessed_tokens) > 0
    _alike(found, expected)


def test_each_adapter_is_recorded_apart_and_followed_where_it_is_changed_in_place():
    adapters = ["one", "two", None] * 3
    params = [SamplingParams(temperature=0.8, max_tokens=12, seed=n) for n in range(9)]
    prompts = [PROMPTS[n % 7] for n in range(9)]
    with closing(_with_adapters()) as plain, closing(_recording(_with_adapters())) as recording:

        def both() -> list:
            records = [sample_all(policy, prompts, params, adapter=adapters) for policy in (plain, recording)]
            _alike(*records)
            return records[1]

        def learn(policy: Policy) -> None:
            for parameter in policy.model.trainable("one"):
                parameter.data.add_(0.02)
            policy.model.versions["one"] += 1

        before = both()
        recordings = dict(recording.engine.decoding._recordings)
        for policy in (plain, recording):
            policy.learn(lambda policy=policy: learn(policy))
        after = both()
        for name, old, new in zip(adapters, before, after, strict=True):
            assert (name == "one") == bool(new.version)
            assert new.version or new.output_ids.tolist() == old.output_ids.tolist()
        assert [r.output_ids.tolist() for r in after[::3]] != [r.output_ids.tolist() for r in before[::3]]
        kept = recording.run(lambda: dict(recording.engine.decoding._recordings))
        assert recordings
        assert {key: kept[key] for key in recordings} == recordings


def test_recordings_of_weights_that_have_moved_are_made_anew():
    params = [SamplingParams(max_tokens=20, seed=3)]

    def move() -> None:
        for parameter in policy.model.trainable():
            parameter.data = parameter.data.clone()
        policy.model.versions["default"] += 1

    # Guesses of the same answer would leave the second time too few steps to record.
    with tiny_policy(engine=EngineSettings(block_size=4, cache_mib=1, max_draft_tokens=0)) as policy:
        _recording(policy)
        sample_all(policy, PROMPTS[:1], params)
        recorded = _counters(policy)["recorded"]
        policy.run(move)
        sample_all(policy, PROMPTS[:1], params)
        assert _counters(policy)["recorded"] > recorded


def test_the_cache_stays_while_learning_where_there_are_recordings():
    with tiny_policy() as policy:
        policy.learn(lambda: None)
        assert not policy.engine._pool.allocated
        _recording(policy)
        sample_all(policy, PROMPTS[:1], [SamplingParams(max_tokens=12, seed=3)])
        policy.learn(lambda: None)
        assert policy.engine._pool.allocated


@pytest.mark.parametrize(
    ("record", "text"), [(_fails, "not permitted when stream is capturing"), (_writes_nothing, "other num")]
)
def test_where_recording_fails_decoding_goes_on_and_the_log_says_why(record, text, caplog):
    params = [SamplingParams(temperature=0.9, max_tokens=12, seed=n) for n in range(len(PROMPTS))]
    with tiny_policy() as policy:
        expected = sample_all(policy, PROMPTS, params)
        _recording(policy, record)
        found = sample_all(policy, PROMPTS, params)
        assert _counters(policy)["replayed"] == 0
        policy.learn(lambda: None)
        assert not policy.engine._pool.allocated
    _alike(found, expected)
    assert [text in line.message for line in caplog.records if "CUDA graphs" in line.message] == [True]


def test_a_step_with_too_long_histories_is_computed_as_before(monkeypatch):
    monkeypatch.setattr("mini_agentic_rl.policy.static_decoding.READ", 64)
    params = [SamplingParams(max_tokens=8, seed=n) for n in range(3)]
    with tiny_policy() as policy:
        expected = sample_all(policy, PROMPTS[:3], params)
        _recording(policy)
        _alike(sample_all(policy, PROMPTS[:3], params), expected)
        assert _counters(policy)["replayed"] == 0


@given(st.integers(1, 400), st.integers(1, 5000), st.sampled_from([1, 4, 7, 8, 64, 100]))
def test_a_size_holds_what_is_asked_and_not_much_more(rows, tokens, block_size):
    size = step_size(rows, tokens, block_size)
    width = size.blocks * block_size
    assert rows <= size.rows <= 1.5 * rows
    assert tokens <= width <= 1.5 * tokens + 2 * max(64, block_size)
    assert size.fits(block_size) == (size.rows * width <= READ)
