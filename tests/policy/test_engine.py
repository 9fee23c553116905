"""Requests that an engine takes, refuses and cancels."""

from __future__ import annotations

import threading

import pytest
import torch

from helpers import tiny_policy
from mini_agentic_rl.policy import CacheFullError, EngineSettings, PolicyError, PromptTooLongError
from mini_agentic_rl.tokens import SamplingParams, TokenDelta, TokenRequest


@pytest.fixture(scope="module")
def policy():
    with tiny_policy(engine=EngineSettings(block_size=4, cache_mib=1, max_batch_tokens=64)) as made:
        yield made


def ask(policy, prompt, **options) -> tuple[object, list[TokenDelta], threading.Event]:
    deltas: list[TokenDelta] = []
    done = threading.Event()

    def on_delta(delta: TokenDelta) -> None:
        deltas.append(delta)
        if delta.finish_reason is not None:
            done.set()

    return policy.engine.submit(TokenRequest(tuple(prompt), **options), on_delta), deltas, done


@pytest.mark.parametrize(
    ("prompt", "options", "kind", "text"),
    [
        ([], {}, PolicyError, "empty"),
        ([-1], {}, PolicyError, "outside 0"),
        ([10**6], {}, PolicyError, "outside 0"),
        (
            [1],
            {"sampling": SamplingParams(logit_bias={10**6: 1.0})},
            PolicyError,
            "logit_bias holds a token id outside",
        ),
        ([1], {"adapter": "nobody"}, PolicyError, "no adapter named 'nobody'"),
        ([1] * 10_000, {}, PromptTooLongError, "10000 tokens"),
    ],
)
def test_a_request_that_cannot_be_sampled_is_refused(policy, prompt, options, kind, text):
    with pytest.raises(kind, match=text):
        ask(policy, prompt, **options)
    assert policy.engine.sequence_counts == (0, 0)


def test_a_prompt_larger_than_the_cache_is_refused(policy, monkeypatch):
    monkeypatch.setattr(policy.engine.cache, "total", 2)
    with pytest.raises(CacheFullError, match="raise `cache_mib`"):
        ask(policy, [1] * 8)


def test_a_cancelled_request_ends_and_leaves_no_block_held(policy):
    free = policy.engine.cache.available
    sequence, deltas, done = ask(policy, [1, 2, 3], sampling=SamplingParams(max_tokens=10_000))
    policy.engine.cancel(sequence)
    assert done.wait(10)
    assert deltas[-1].finish_reason == "cancelled"
    policy.engine.cancel(sequence)  # harmless
    assert policy.run(lambda: policy.engine.cache.available) == free


def assert_answers(policy) -> None:
    """The engine still answers."""
    _, deltas, done = ask(policy, [1, 2, 3], sampling=SamplingParams(max_tokens=2))
    assert done.wait(20)
    assert deltas[-1].finish_reason == "length"


def test_a_failing_pass_ends_the_requests_under_way_and_not_the_engine(policy, monkeypatch, caplog):
    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(policy.model, "hidden", fail)
        policy.engine.submit(TokenRequest((1, 2)), fail)  # its callback raises too, at the end of the failed pass
        _, deltas, done = ask(policy, [1, 2, 3])
        assert done.wait(20)
    assert deltas[-1].finish_reason == "cancelled"
    assert "out of memory" in caplog.text
    assert_answers(policy)


def test_a_closed_engine_cancels_what_it_has_and_refuses_the_rest():
    with tiny_policy() as closing:
        _, deltas, done = ask(closing, [1, 2, 3], sampling=SamplingParams(max_tokens=10_000))
        closing.close()
        assert done.wait(10)
        assert deltas[-1].finish_reason in ("cancelled", "length")
        with pytest.raises(PolicyError, match="closed"):
            ask(closing, [1])


def test_where_the_model_says_no_numbers_nothing_is_drawn(policy, monkeypatch, caplog):
    with monkeypatch.context() as damaged:
        damaged.setattr(policy.model, "logits", lambda hidden: torch.full((len(hidden), 300), torch.nan))
        _, deltas, done = ask(policy, [1, 2, 3])
        assert done.wait(30)
    assert [(delta.token_ids, delta.finish_reason) for delta in deltas] == [((), "cancelled")]
    assert "NaN or infinity" in caplog.text
    assert_answers(policy)


def test_a_callback_that_raises_ends_its_own_request_alone(policy, caplog):
    def on_delta(delta: TokenDelta) -> None:
        raise RuntimeError("Event loop is closed")

    free = policy.run(lambda: policy.engine.cache.available)
    policy.engine.submit(TokenRequest((1, 2), sampling=SamplingParams(max_tokens=50)), on_delta)
    assert_answers(policy)
    assert "Event loop is closed" in caplog.text
    assert policy.run(lambda: policy.engine.cache.available) == free
