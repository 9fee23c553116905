"""A store server that is killed at a random moment under load and started again on its file.

`tests/torture/test_store_machine.py` does it hundreds of times, in PostgreSQL as well.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from mini_agentic_rl.store.http.client import LightningStoreClient

from .crash import PATIENT, Acknowledged, check_kept, kill, load_until, nothing_is_stuck, start_command


async def test_a_server_killed_at_a_random_moment_loses_nothing_and_leaves_nothing_stuck(tmp_path: Path) -> None:
    path, acknowledged = tmp_path / "store.db", Acknowledged()
    server, address = await asyncio.to_thread(start_command, path)
    client = LightningStoreClient(address)
    acknowledged.queued.add((await client.enqueue_rollout("before", config=PATIENT)).rollout_id)
    await client.close()
    await load_until(lambda: kill(server), address, acknowledged)
    await check_kept(path, acknowledged)

    server, address = await asyncio.to_thread(start_command, path)
    await nothing_is_stuck(address, acknowledged)
    server.terminate()
    output, _ = await asyncio.to_thread(server.communicate)
    assert server.returncode == 0
    assert "stopped" in output
