"""Invariant 9: tokens that are guessed ahead change no token that is sampled, and no log-probability."""

from __future__ import annotations

import numpy as np
import pytest

from helpers import group_of_conversations, pack_rollouts, sample_all, tiny_policy
from mini_agentic_rl.policy import EngineSettings, LearnerSettings
from mini_agentic_rl.tokens import SamplingParams


def _engine(longest, **changed):
    return EngineSettings(
        **{"block_size": 4, "cache_mib": 1, "max_batch_tokens": 96, **changed}, max_draft_tokens=longest
    )


def _guess_always(policy):
    """Take rows to be free: on a busy machine, what they are measured to cost is chance."""
    policy.engine._drafts.cost.share_of_row = lambda rows: 0.0


def _alike(one, other):
    for left, right in zip(one, other, strict=True):
        assert left.output_ids.tolist() == right.output_ids.tolist()
        assert left.finish_reason == right.finish_reason
        np.testing.assert_allclose(left.logprobs, right.logprobs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("changed", [{}, {"max_batch_tokens": 13}, {"max_running": 2}])
@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0},
        {"temperature": 0.2},
        {"temperature": 1.0, "top_k": 2},
        {"temperature": 0.3, "frequency_penalty": 0.1},
        {"temperature": 0.2, "stop_token_ids": tuple(range(0, 300, 7))},
    ],
)
def test_tokens_and_log_probabilities_are_the_same_with_and_without(sampling, changed):
    prompts = [[7, 8, 9, 10, 11] * 3, [7, 8, 9, 10, 11] * 3, [3, 4] * 5, [50 + n for n in range(21)], [50, 51, 52]]
    params = [SamplingParams(**sampling, max_tokens=24, seed=n) for n in range(len(prompts))]
    with tiny_policy(engine=_engine(0, **changed)) as policy:
        plain = sample_all(policy, prompts, params)
    with tiny_policy(engine=_engine(8, **changed)) as policy:
        _guess_always(policy)
        guessed = sample_all(policy, prompts, params)
        counters = policy.run(lambda: policy.engine.counters)  # when the pass that gave the last token has been counted
        assert counters.guessed_tokens > 0
        assert counters.sampled_tokens == sum(record.output_ids.size for record in guessed)
        assert policy.engine.cache.available == policy.engine.cache.total
    _alike(plain, guessed)


def test_what_was_said_before_takes_few_passes_to_say_again():
    params = [SamplingParams(temperature=0.0, max_tokens=40, seed=0)]
    with tiny_policy(engine=_engine(8)) as policy:
        _guess_always(policy)
        passes = []
        for _ in range(2):
            before = policy.engine.counters.passes
            sample_all(policy, [[7, 8, 9] * 4], params)
            passes.append(policy.engine.counters.passes - before)
    assert passes[1] < passes[0] / 3


def test_conversations_sampled_with_guesses_are_learnt_as_they_were_sampled():
    with tiny_policy(engine=_engine(8)) as policy:
        _guess_always(policy)
        conversations = group_of_conversations(policy, rollouts=5)
        packed = pack_rollouts(conversations)
        learner = policy.run(lambda: policy.learner(LearnerSettings()))
        learned = policy.run(lambda: learner.logprobs(packed)).cpu().numpy()
        assert np.abs(learned - packed.behaviour_logprobs_S).max() < 1e-4
