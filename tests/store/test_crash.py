"""A store server that is killed at random moments under load and started again on its file.

`tests/torture/test_store_machine.py` does it hundreds of times, in PostgreSQL as well.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from .crash import Acknowledged, check_kept, kill, load_until, nothing_is_stuck, start_command

ROUNDS = 2


async def test_a_server_killed_at_random_moments_loses_nothing_and_leaves_nothing_stuck(tmp_path: Path) -> None:
    path, acknowledged = tmp_path / "store.db", Acknowledged()
    for _ in range(ROUNDS):
        server, address = await asyncio.to_thread(start_command, path)
        await load_until(lambda server=server: kill(server), address, acknowledged)
        await check_kept(path, acknowledged)

    server, address = await asyncio.to_thread(start_command, path)
    await nothing_is_stuck(address, acknowledged)
    server.terminate()
    output, _ = await asyncio.to_thread(server.communicate)
    assert server.returncode == 0
    assert "stopped" in output
