"""Invariant 1: what is trained is exactly what was sampled, through the real SDK, over three turns of tool calls."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import numpy as np
from openai import AsyncOpenAI

from mini_agentic_rl import InMemoryLightningStore
from mini_agentic_rl.adapter import spans_to_records
from mini_agentic_rl.gateway.http.server import MiniLLMServer
from mini_agentic_rl.policy import EngineSettings, LearnerSettings, LoraSettings, Policy, load_model
from mini_agentic_rl.policy.engine import Engine
from mini_agentic_rl.samplers import PolicySampler
from mini_agentic_rl.tokens import TokenTree, pack
from tiny import tiny_model, tiny_tokenizer

TOOL = {"type": "function", "function": {"name": "calculate", "parameters": {"type": "object", "properties": {}}}}


class _Listening(Engine):
    """The engine, writing down what it drew."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.drawn: dict[tuple[int, ...], tuple[int, ...]] = {}

    def submit(self, request, on_delta):
        ids: list[int] = []

        def listen(delta):
            ids.extend(delta.token_ids)
            self.drawn[request.prompt_ids] = tuple(ids)
            on_delta(delta)

        return super().submit(request, listen)


async def _converse(server, store, *, stream):
    rollout = await store.start_rollout(input={}, mode="train")
    url = server.as_resource().get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
    client = AsyncOpenAI(api_key="none", base_url=url, max_retries=0)
    messages: list[dict] = [{"role": "user", "content": "How many apples are there?"}]
    for turn in range(3):
        options = {"model": "tiny", "messages": messages, "tools": [TOOL], "max_tokens": 9, "seed": turn}
        if stream:
            parts = [part async for part in await client.chat.completions.create(stream=True, **options)]
            content = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
        else:
            content = (await client.chat.completions.create(**options)).choices[0].message.content
        messages += [
            {"role": "assistant", "content": content},
            {"role": "user", "content": json.dumps({"result": turn})},
        ]
    await client.close()
    return spans_to_records(await store.query_spans(rollout.rollout_id, "latest"))


def test_training_tokens_are_exactly_the_sampled_tokens():
    tokenizer = tiny_tokenizer()
    policy = Policy(load_model(tiny_model(len(tokenizer)), lora=LoraSettings()), EngineSettings(cache_mib=2))
    engine = policy.engine = _Listening(policy.model, policy._thread, EngineSettings(cache_mib=2, block_size=4))
    store = InMemoryLightningStore()
    sampler = PolicySampler(engine, base_name="base", adapters=["default"], context_length=512)
    try:
        with MiniLLMServer(sampler, tokenizer, model_name="tiny", store=store) as server:
            for stream in (False, True):
                records = asyncio.run(_converse(server, store, stream=stream))
                assert len(records) == 3
                for record in records:
                    assert engine.drawn[tuple(record.prompt_ids.tolist())] == tuple(record.output_ids.tolist())
                for earlier, later in pairwise(records):
                    whole = np.concatenate([earlier.prompt_ids, earlier.output_ids])
                    np.testing.assert_array_equal(later.prompt_ids[: whole.size], whole)
                tree = TokenTree()
                for record in records:
                    tree.insert(record)
                assert tree.token_count == records[-1].prompt_ids.size + records[-1].output_ids.size
                packed = pack([tree])
                sampled = np.concatenate([record.output_ids for record in records])
                np.testing.assert_array_equal(packed.tokens_T[packed.token_S], sampled)
                learner = policy.run(lambda: policy.learner(LearnerSettings()))
                learned = policy.run(lambda: learner.logprobs(packed)).numpy()  # noqa: B023
                np.testing.assert_allclose(learned, packed.behaviour_logprobs_S, atol=1e-4, rtol=0)
    finally:
        policy.close()
