"""What keeps a run on a Ray cluster from beginning or going on, and what is said of it."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest
from ray_runs import SECONDS, actors, enqueues, idle, strategy_of

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


def test_the_algorithms_exception_stops_the_runners_and_is_raised(cluster: Any) -> None:
    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        end = time.monotonic() + SECONDS
        while not actors():
            assert time.monotonic() < end
            await asyncio.sleep(0.1)
        raise ZeroDivisionError("in the algorithm")

    async def idle(store: LightningStore, index: int, event: ExecutionEvent) -> None:
        await event.wait_async()

    with pytest.raises(ZeroDivisionError, match="in the algorithm"):
        strategy_of(cluster).execute(algorithm, idle, InMemoryLightningStore())


def test_a_bundle_that_cannot_be_loaded_ends_the_run_with_the_error(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text(
        f"import os\nif os.getpid() != {os.getpid()}:\n    raise ImportError('only at home')\n\n"
        "async def runner(store, index, event): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import only_here  # type: ignore[import-not-found]  # written above

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        await asyncio.sleep(SECONDS)

    with pytest.raises(Exception, match="only at home"):
        strategy_of(cluster).execute(algorithm, only_here.runner, InMemoryLightningStore())


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
