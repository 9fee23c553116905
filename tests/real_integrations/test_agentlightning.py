"""The store of the real agent-lightning 0.3.0, written by its own code into a MongoDB server, and taken over.

`AGENTLIGHTNING_PYTHON` is the Python of an environment with `agentlightning[mongo]==0.3.0`.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from mini_agentic_rl.emitter import find_final_reward
from mini_agentic_rl.store import InMemoryLightningStore, import_store, open_foreign
from store.mongo_server import mongo_url, needs_mongo, new_database

PYTHON = "AGENTLIGHTNING_PYTHON"
WRITER = """
import asyncio, sys
from agentlightning.store.mongo import MongoLightningStore
from agentlightning.types import LLM, PromptTemplate, Span

async def main(url, database):
    store = MongoLightningStore(mongo_uri=url, database_name=database, partition_id="pt-test")
    llm = LLM(endpoint="http://h/v1", model="m", sampling_parameters={"temperature": 0.7})
    await store.add_resources({"llm": llm, "prompt": PromptTemplate(template="Say {x}", engine="f-string")})
    for number in range(3):
        await store.enqueue_rollout({"q": number}, mode="train", metadata={"n": number} if number else None)
    for number, end in enumerate(("succeeded", "failed")):
        rollout = await store.dequeue_rollout(worker_id="w-1")
        ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
        facts = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 0.5 + number}
        place = await store.get_next_span_sequence_id(**ids)
        span = Span.from_attributes(attributes=facts, sequence_id=place, name="agentlightning.annotation", **ids)
        await store.add_span(span)
        await store.update_attempt(**ids, status=end)
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""


@needs_mongo
@pytest.mark.skipif(
    PYTHON not in os.environ, reason=f"{PYTHON} is not set: stores of agent-lightning 0.3 are unchecked"
)
async def test_what_its_own_store_has_written_is_taken_over():
    url, database = mongo_url(), new_database()
    subprocess.run([os.environ[PYTHON], "-c", WRITER, url, database], check=True, timeout=300)
    store = InMemoryLightningStore()
    found = await import_store(open_foreign(f"{url}/{database}", partition="pt-test"), store)
    assert (found.rollouts, found.attempts, found.spans, found.resources, found.workers) == (2, 2, 2, 1, 1)
    assert (found.unfinished, found.strange) == (1, 0)
    rewards = {}
    for rollout in await store.query_rollouts():
        rewards[rollout.input["q"], rollout.status] = find_final_reward(await store.query_spans(rollout.rollout_id))
    assert rewards == {(0, "succeeded"): 0.5, (1, "failed"): 1.5}
    resources = (await store.get_latest_resources()).resources
    assert (resources["llm"].model, resources["prompt"].format(x="a")) == ("m", "Say a")
    nothing = await import_store(open_foreign(f"{url}/{database}", partition="pt-other"), InMemoryLightningStore())
    assert nothing.rollouts == 0
