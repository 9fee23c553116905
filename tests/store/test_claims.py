"""Worker processes that claim from one store: each rollout goes to exactly one of them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from mini_agentic_rl.store import InMemoryLightningStore, LightningStore, LightningStoreServer, SqlLightningStore
from mini_agentic_rl.types import EnqueueRolloutRequest

PROCESSES = 4
ROLLOUTS = 400

_CLAIMER = """
import asyncio, json, sys
from mini_agentic_rl.store.open import open_store

async def main():
    store, claimed = open_store(sys.argv[1]), []
    while (rollout := await store.dequeue_rollout(sys.argv[2])) is not None:
        await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
        claimed.append(rollout.rollout_id)
    await store.close()
    print(json.dumps(claimed))

print("ready", flush=True)
input()
asyncio.run(main())
"""


async def _claim_all(store: LightningStore, spec: str) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _CLAIMER, spec, f"w{index}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(PROCESSES)
    ]
    try:
        queued = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(ROLLOUTS)])
        for process in processes:
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == "ready\n"
        outputs = await asyncio.gather(*(asyncio.to_thread(process.communicate, "\n") for process in processes))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    claims = [json.loads(output) for output, _ in outputs]
    assert sorted(rollout_id for claim in claims for rollout_id in claim) == sorted(r.rollout_id for r in queued)
    assert sum(bool(claim) for claim in claims) > 1
    assert (await store.query_rollouts(status_in=["succeeded"], limit=0)).total == ROLLOUTS
    assert (await store.statistics())["total_attempts"] == ROLLOUTS


async def test_processes_on_one_file_claim_each_rollout_once(tmp_path: Path) -> None:
    store = SqlLightningStore(tmp_path / "store.db")
    await _claim_all(store, str(store.path))
    await store.close()


async def test_processes_on_one_server_claim_each_rollout_once() -> None:
    server = LightningStoreServer(InMemoryLightningStore(), port=0)
    await server.start()
    await _claim_all(server, server.endpoint)
    await server.close()
