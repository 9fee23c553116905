"""Invariant 5: no key or value computed with older weights is ever used again."""

from __future__ import annotations

import threading

import numpy as np

from helpers import pack_rollouts, sample_all, tiny_policy
from mini_agentic_rl.policy import EngineSettings, LearnerSettings, LoraSettings, LossOutputs, Policy, load_model
from mini_agentic_rl.tokens import CompletionRecord, SamplingParams, TokenRequest
from tiny import tiny_model

PROMPT = list(range(40, 75))
ENGINE = EngineSettings(block_size=4, cache_mib=1, max_batch_tokens=48, max_draft_tokens=0)
"""Without guesses, so that the tokens computed can be counted."""


def _step(policy, records, adapter="default"):
    """One large optimizer step."""

    def job():
        learner = policy.learner(LearnerSettings(learning_rate=0.3), adapter)
        packed = pack_rollouts([[record] for record in records])
        learner.forward_backward(packed, lambda inputs: LossOutputs(inputs.logprobs_S.sum()))
        learner.optim_step()
        return learner

    return policy.run(job)


def test_after_a_step_the_same_prompt_is_computed_anew():
    params = [SamplingParams(max_tokens=4, seed=1)]
    with tiny_policy(engine=ENGINE) as policy:
        first = sample_all(policy, [PROMPT], params)
        before = policy.engine.counters.computed_tokens
        sample_all(policy, [PROMPT], params)
        assert policy.engine.counters.computed_tokens - before < len(PROMPT) // 2  # found in the cache
        learner = _step(policy, first)
        before = policy.engine.counters.computed_tokens
        (after,) = sample_all(policy, [PROMPT], params)
        assert policy.engine.counters.computed_tokens - before == len(PROMPT) + 3
        learned = policy.run(lambda: learner.logprobs(pack_rollouts([[after]]))).numpy()
    assert after.version == 1
    assert np.abs(learned - after.logprobs).max() < 1e-4
    assert np.abs(first[0].logprobs[0] - after.logprobs[0]) > 1e-3  # the step did change something


def test_of_two_adapters_only_the_one_that_changed_is_computed_anew():
    model = load_model(tiny_model(), lora=LoraSettings(), adapters={"assistant": None, "user": None}, seed=0)
    params = [SamplingParams(max_tokens=4, seed=1)]
    policy = Policy(model, ENGINE)

    def computed(adapter):
        before = policy.engine.counters.computed_tokens
        (record,) = sample_all(policy, [PROMPT], params, adapter=adapter)
        return policy.engine.counters.computed_tokens - before, record

    try:
        everything = len(PROMPT) + 3
        records = {adapter: computed(adapter) for adapter in ("assistant", "user", None)}
        assert [tokens for tokens, _ in records.values()] == [everything] * 3
        _step(policy, [records["assistant"][1]], "assistant")
        tokens, after = computed("assistant")
        assert (tokens, after.version) == (everything, 1)
        for adapter in ("user", None):
            tokens, after = computed(adapter)
            assert tokens < everything // 2
            assert after.version == 0
            assert after.output_ids.tolist() == records[adapter][1].output_ids.tolist()
    finally:
        policy.close()


def test_a_request_under_way_goes_on_with_the_new_weights():
    engine = EngineSettings(block_size=4, cache_mib=1)
    with tiny_policy(engine=engine) as policy:
        seen: list = []
        some, done = threading.Event(), threading.Event()

        def on_delta(delta):
            seen.append(delta)
            if len(seen) == 5:
                some.set()
            if delta.finish_reason:
                done.set()

        policy.engine.submit(TokenRequest(tuple(PROMPT), SamplingParams(max_tokens=300, seed=3)), on_delta)
        assert some.wait(20)
        records = sample_all(policy, [[1, 2, 3]], [SamplingParams(max_tokens=2, seed=0)])
        learner = _step(policy, records)
        assert done.wait(60)
        tokens = [token for delta in seen for token in delta.token_ids]
        versions = np.array([delta.version for delta in seen for _ in delta.token_ids])
        logprobs = np.array([value for delta in seen for value in delta.logprobs], np.float32)
        assert set(versions) == {0, 1}
        record = CompletionRecord(np.array(PROMPT), np.array(tokens), logprobs)
        learned = policy.run(lambda: learner.logprobs(pack_rollouts([[record]]))).numpy()
    new = versions == 1
    assert np.abs(learned - logprobs)[new].max() < 1e-4
    assert np.abs(learned - logprobs)[~new].max() > 1e-3
