"""What keeps a run on a Ray cluster from beginning or going on, and what is said of it."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest
from ray_runs import SECONDS, enqueues, idle, strategy_of

from mini_agentic_rl.errors import UserError
from mini_agentic_rl.execution import ExecutionEvent
from mini_agentic_rl.store import InMemoryLightningStore, LightningStore


def test_runners_that_no_node_has_room_for_wait_and_say_for_what(
    cluster: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mini_agentic_rl.integrations.ray.runners._WAITING_SECONDS", 1.0)

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        await store.enqueue_rollout(1)
        end = time.monotonic() + SECONDS
        while "no runner has a place yet" not in caplog.text:
            assert time.monotonic() < end
            await asyncio.sleep(0.1)

    with caplog.at_level(logging.INFO):
        strategy_of(cluster, runner_cpus=64).execute(algorithm, idle, InMemoryLightningStore())
    assert "no node of the cluster has the 64 CPUs that a runner asks for (`runner_cpus`" in caplog.text


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"runner_env": {"env_var": {}}}, "runner_env: .*env_vars"),
        ({"runner_env": {"env_vars": {"A": 1}}}, "runner_env: .*Dict"),
        ({"runner_env": {"working_dir": "/nowhere"}}, "runner_env: .*no folder /nowhere"),
        ({"address": "127.0.0.1:1"}, "ray_address: there is no Ray cluster at 127.0.0.1:1"),
    ],
)
def test_what_ray_does_not_take_is_said_in_one_line(cluster: Any, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as refused:
        strategy_of(cluster, **settings).execute(enqueues(0), idle, InMemoryLightningStore())
    assert "\n" not in str(refused.value)
