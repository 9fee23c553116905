"""Weights that change while an answer grows: its record names the version of each token."""

from __future__ import annotations

import asyncio

import numpy as np
from openai import AsyncOpenAI

from helpers import sample_all, tiny_policy
from mini_agentic_rl.adapter import spans_to_records
from mini_agentic_rl.gateway.http.server import MiniLLMServer
from mini_agentic_rl.policy import EngineSettings, LearnerSettings, LossOutputs
from mini_agentic_rl.samplers import PolicySampler
from mini_agentic_rl.store import InMemoryLightningStore
from mini_agentic_rl.tokens import SamplingParams, TokenTree, pack
from tiny import tiny_tokenizer


def _packed(records):
    tree = TokenTree()
    for index, record in enumerate(records):
        tree.insert(record, index)
    return pack([tree])


async def test_each_token_of_an_answer_is_recorded_with_the_version_that_sampled_it():
    store, tokenizer = InMemoryLightningStore(), tiny_tokenizer()
    engine = EngineSettings(block_size=4, cache_mib=1, max_draft_tokens=0)
    with tiny_policy(engine=engine, vocabulary=len(tokenizer)) as policy:
        sampler = PolicySampler(policy.engine, base_name="base", adapters=["default"], context_length=512)
        with MiniLLMServer(sampler, tokenizer, model_name="tiny", store=store) as server:
            rollout = await store.start_rollout({})
            url = server.as_resource().get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
            async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
                asking = asyncio.create_task(
                    client.chat.completions.create(
                        model="tiny",
                        messages=[{"role": "user", "content": "hi"}],
                        max_tokens=400,
                        seed=2,
                        # No end token: the answer is to be under way when the weights change.
                        logit_bias={str(tokenizer.eos_token_id): -100},
                    )
                )
                counters = policy.engine.counters
                while counters.sampled_tokens < 5:
                    await asyncio.sleep(0.005)
                learner = await policy.run_async(lambda: policy.learner(LearnerSettings(learning_rate=0.05)))
                (other,) = await asyncio.to_thread(sample_all, policy, [[1, 2, 3]], [SamplingParams(max_tokens=2)])

                def learn():
                    learner.forward_backward(_packed([other]), lambda inputs: LossOutputs(inputs.logprobs_S.sum()))
                    learner.optim_step()

                await policy.learn_async(learn, 0.5)
                await asking
            (record,) = spans_to_records(await store.query_spans(rollout.rollout_id))
            learned = policy.run(lambda: learner.logprobs(_packed([record]))).numpy()
    assert record.versions is not None
    assert record.version == record.versions[0] == 0
    assert record.versions.size == record.output_ids.size
    assert set(record.versions) == {0, 1}
    new = _packed([record]).version_S == 1
    # The bias has its part in what the sampler records, and in that of the end token alone.
    assert np.abs(learned - record.logprobs)[new].max() < np.abs(learned - record.logprobs)[~new].max() / 3
