"""The processes of the compose file, run as they are: a real PostgreSQL, a store server, a learner and two runners."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import signal
from pathlib import Path

import pytest
import yaml

from mini_agentic_rl import SqlLightningStore
from processes import PythonProcess, free_port
from store.postgres import needs_postgres, server

from .compose import services

TRAINING = {
    "agent": "math",
    "dataset": "arithmetic",
    "total_steps": 1,
    "tasks_per_step": 4,
    "samples_per_prompt": 2,
    "sft_examples": 0,
    "eval_size": 2,
    "transfer_size": 0,
    "max_new_tokens": 8,
    "n_runners": 1,
}


@needs_postgres
@pytest.mark.timeout(600)
def test_the_compose_file_trains(tiny_folder: str, tmp_path: Path) -> None:
    password, api_key = secrets.token_hex(16), secrets.token_hex(16)
    server().execute(f"CREATE ROLE agl LOGIN PASSWORD '{password}'")
    server().execute("CREATE DATABASE agl OWNER agl STRATEGY file_copy")
    config = tmp_path / "train.yaml"
    config.write_text(yaml.safe_dump({**TRAINING, "model": tiny_folder}))
    started = services(
        {"POSTGRES_PASSWORD": password, "AGL_API_KEY": api_key},
        {"postgres": {5432: server().port}, "store": {4747: free_port()}, "learner": {8000: free_port()}},
        {"/etc/agl": tmp_path, "/runs": tmp_path / "runs"},
    )
    assert [service.name for service in started] == ["store", "learner", "runner", "runner"]
    with contextlib.ExitStack() as stack:
        running = {}
        for number, service in enumerate(started):
            assert all(name in ("postgres", "store") for name in service.after)
            assert service.command[0] == "mini-agentic-rl"
            process = PythonProcess("mini_agentic_rl", *service.command[1:], environment=service.environment)
            stack.enter_context(process)
            running[number, service.name] = process
            if service.name == "store":
                service.wait_until_healthy(process)
        learner = running[1, "learner"]
        assert learner.wait(300) == 0, learner.stderr
        runners = [process for (_, name), process in running.items() if name == "runner"]
        for process in [*runners, running[0, "store"]]:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(60) for process in runners] == [143, 143], runners[0].stderr
        assert running[0, "store"].wait(60) == 0

    folder = tmp_path / "runs" / "training"
    assert json.loads((folder / "summary.json").read_text())["untrained"] == {}
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    assert [row["step"] for row in rows if "seconds/learning" in row] == [1]

    async def workers() -> set[str]:
        store = SqlLightningStore(f"postgresql://agl:{password}@127.0.0.1:{server().port}/agl")
        try:
            assert {rollout.status for rollout in await store.query_rollouts()} == {"succeeded"}
            return {worker.worker_id for worker in await store.query_workers()}
        finally:
            await store.close()

    assert len(asyncio.run(workers())) == 2, "both runners take part"
