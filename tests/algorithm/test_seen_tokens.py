"""What the learner saw of each trained token is recorded beside what the sampler recorded, at the right token."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from letters import TASKS, AnyReward, Letters, algorithm, fit, ppo_algorithm

from helpers import pack_rollouts
from mini_agentic_rl import InMemoryLightningStore
from mini_agentic_rl.adapter import spans_to_records
from mini_agentic_rl.algorithm.loop import record_seen
from mini_agentic_rl.algorithm.state import SeenCall
from mini_agentic_rl.apps.dashboard.views import tokens_view
from mini_agentic_rl.policy import LearnerSettings, LossOutputs, Policy
from mini_agentic_rl.policy.loss import SeenTerms
from mini_agentic_rl.semconv import AGL_LEARNER, LearnerSpanAttributes
from mini_agentic_rl.tokens import CompletionRecord
from tiny import tiny_model


def record(*, prompt=(1, 2, 3), output=(4, 5, 6, 7), forced=None, **facts):
    marks = None if forced is None else np.array(forced, np.bool_)
    return CompletionRecord(
        np.array(prompt, np.int64),
        np.array(output, np.int64),
        np.full(len(output), -0.5, np.float32),
        forced=marks,
        metadata={"span_id": "s1", "agent_name": None},
        **facts,
    )


def test_a_pass_tells_the_log_probability_and_entropy_of_each_term_however_it_is_cut():
    packed = pack_rollouts([[record(output=(4, 5, 6, last), forced=[False, True, False, False])] for last in (7, 8, 9)])
    policy = Policy.load(tiny_model())
    try:
        seen = []
        for size in (2048, 8):
            learner = policy.run(lambda size=size: policy.learner(LearnerSettings(max_batch_tokens=size)))
            found = SeenTerms(packed.term_count)
            policy.run(
                lambda learner=learner, found=found: learner.forward_backward(
                    packed, lambda inputs: LossOutputs(-inputs.logprobs_S.sum()), gradient=False, seen=found
                )
            )
            seen.append(found)
        expected = policy.run(lambda: learner.logprobs(packed)).cpu().numpy()
    finally:
        policy.close()
    assert packed.term_count == 9
    for found in seen:
        np.testing.assert_allclose(found.logprobs_S, expected, atol=1e-5)
        assert (found.entropy_S > 0).all()
    np.testing.assert_allclose(seen[0].entropy_S, seen[1].entropy_S, atol=1e-5)


async def test_a_store_that_takes_no_span_stops_no_run(caplog):
    seen = SeenCall(record(rollout_id="gone", attempt_id="gone"), 3, np.zeros(4, np.float32), np.zeros(4, np.float32))
    await record_seen(InMemoryLightningStore(), [seen])
    assert "not recorded" in caplog.text


@pytest.fixture(scope="module", params=["grpo", "ppo"])
def trained(request):
    """The store of a run of two steps."""
    torch.manual_seed(0)
    store = InMemoryLightningStore()
    sizes = {"total_steps": 2, "tasks_per_step": 2, "samples_per_prompt": 4}
    own = algorithm(**sizes) if request.param == "grpo" else ppo_algorithm(**sizes, minibatches=1)
    fit(own, Letters(), TASKS, [AnyReward()], store=store)
    return store


async def test_each_rollout_that_was_learnt_from_has_the_numbers_of_its_tokens(trained):
    learnt = 0
    for rollout in await trained.query_rollouts():
        spans = list(await trained.query_spans(rollout.rollout_id))
        seen = [span for span in spans if span.name == AGL_LEARNER]
        if not seen:
            continue
        learnt += 1
        records = spans_to_records(spans)
        facts = seen[0].attributes
        assert facts[LearnerSpanAttributes.LENGTHS] == [one.trained_tokens for one in records]
        assert facts[LearnerSpanAttributes.SPAN_IDS] == [one.metadata["span_id"] for one in records]
        sampled = np.concatenate([one.logprobs for one in records])
        np.testing.assert_allclose(facts[LearnerSpanAttributes.LOGPROBS], sampled, atol=2e-3)
        assert min(facts[LearnerSpanAttributes.ENTROPIES]) > 0
        (row,) = tokens_view(spans, [], None)["rows"]
        np.testing.assert_allclose(row["learner"], row["logprob"], atol=2e-3)
        assert None not in row["entropy"]
    assert learnt >= 8
