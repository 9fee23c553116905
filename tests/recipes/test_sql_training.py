"""Training the SQL agent as a person does: the command, the script with a store server, the proxy, the example."""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from caches import empty_cache
from mini_agentic_rl.cli import app
from mini_agentic_rl.metrics import read_metrics
from mini_agentic_rl.recipes.sql import job as sql_job
from mini_agentic_rl.recipes.sql.job import SqlTrainConfig
from mini_agentic_rl.store import InMemoryLightningStore, LightningStoreServer
from processes import PythonProcess, free_port
from recipes.playing import roomy_model, run

model = roomy_model
SCRIPT = Path(__file__).parents[2] / "scripts" / "train_sql_agent.py"
FEW = ("--eval-size", "2", "--tasks-per-step", "1", "--llm-proxy")
TINY = ("--max-new-tokens", "8", "--cache-mib", "64", "--max-samples", "8")


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINI_AGENTIC_RL_CACHE", str(empty_cache(tmp_path_factory.mktemp("cache"))))
        yield


def test_a_fast_run_through_a_proxy_measures_imitates_and_reinforces(model, tmp_path):
    folder = tmp_path / "run"
    told = run("train-sql", "--ci-fast", "--json", "--model", model, *TINY, *FEW, "--output-dir", folder)
    summary = json.loads(told)
    assert [row["name"] for row in summary["accuracy"]] == ["before", "after SFT", "after RL"]
    assert [row["count"] for row in summary["accuracy"]] == [2, 2, 2]
    assert summary["steps"] == 1
    assert summary["untrained"] == {}  # each call was recorded with its tokens
    weights = folder / "adapter" / "adapter_model.safetensors"
    assert weights.stat().st_mode == (folder / "metrics.jsonl").stat().st_mode
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["step"] for row in rows if "accuracy" in row] == [0, 0, 1]
    assert [row["step"] for row in rows if "sft/loss" in row] == [1]
    assert [row["step"] for row in rows if "seconds/sampling" in row] == [1]
    measured = run(
        *("eval", "--agent", "sql", "--size", "1", "--model", model, "--json", "--max-new-tokens", "8"),
        *("--adapter", folder / "adapter"),
    )
    assert json.loads(measured)["accuracy"][0]["count"] == 1
    assert json.loads(measured)["dataset"] == "medical"


def test_a_process_of_runners_alone_serves_the_algorithm_and_leaves_its_folder_alone(model, tmp_path, monkeypatch):
    store = InMemoryLightningStore()
    server = LightningStoreServer(store, port=0)
    asyncio.run(server.start())
    monkeypatch.setenv("AGL_MANAGED_STORE", "0")
    few = ("--eval-size", "1", "--tasks-per-step", "1", "--sft-examples", "0")
    options = ("--ci-fast", "--model", model, *TINY, *few, "--external-store-address", server.endpoint)
    script = (SCRIPT, *options, "--n-runners", "1", "--output_dir", str(tmp_path / "run"))
    try:
        with PythonProcess(*script, environment={"AGL_CURRENT_ROLE": "runner"}) as runners:
            monkeypatch.setenv("AGL_CURRENT_ROLE", "algorithm")
            told = run("train-sql", *options, "--output-dir", tmp_path / "run", "--json")
            assert json.loads(told)["steps"] == 1
            assert (tmp_path / "run" / "adapter" / "adapter_model.safetensors").is_file()
            runners.send_signal(signal.SIGINT)
            assert runners.wait() == 130
            assert runners.stdout == ""
        assert (tmp_path / "run" / "summary.json").is_file()
        rollouts = asyncio.run(store.query_rollouts())
        assert {rollout.status for rollout in rollouts} == {"succeeded"}
        assert len(rollouts) == 2 * 1 + 1 * 2
        (worker,) = asyncio.run(store.query_workers())
        assert worker.worker_id.startswith("runner-0@")
        assert worker.heartbeat_stats["pid"] != os.getpid()
    finally:
        asyncio.run(server.stop())


async def test_a_store_server_that_runs_is_found_without_its_address(monkeypatch, tmp_path):
    server = LightningStoreServer(InMemoryLightningStore(), port=0)
    await server.start()
    try:
        port = int(server.endpoint.rpartition(":")[2])
        monkeypatch.setattr(sql_job, "PORTS", (free_port(), port))
        monkeypatch.setenv("AGL_MANAGED_STORE", "0")
        _, _, components = await asyncio.to_thread(SqlTrainConfig(output_dir=tmp_path).prepare)
    finally:
        await server.stop()
    assert components == {"store": f"http://127.0.0.1:{port}"}


def test_without_a_store_server_rollouts_go_to_a_file(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(sql_job, "PORTS", (free_port(),))
    monkeypatch.setenv("AGL_MANAGED_STORE", "0")
    _, _, components = SqlTrainConfig(output_dir=tmp_path).prepare()
    assert components == {"store": str(tmp_path / "rollouts.db"), "strategy": "shm"}
    assert "AGL_MANAGED_STORE=0, but no store server runs on this computer" in caplog.text


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--external-store-address", "localhost:9999"), "--external-store-address: localhost:9999"),
        (("--answer-weight", "1"), "--answer-weight: 1.0"),
        (("--reward-model-url", "localhost:1"), "--reward-model-url: localhost:1"),
        (("--agent", "math"), "--agent: this trains the SQL agent"),
        (("--database", "nowhere.db"), "nowhere.db cannot be"),
    ],
)
def test_a_setting_that_cannot_work_is_named(options, told, model, tmp_path):
    arguments = ["train-sql", "--ci-fast", "--model", model, "--output-dir", str(tmp_path / "run"), *options]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert told in result.stderr
    assert not (tmp_path / "run").exists()


def test_the_example_trains_it_from_its_pieces(model, tmp_path, monkeypatch, capsys):
    options = (
        *("--model", model, "--steps", "1", "--tasks-per-step", "1", "--samples-per-prompt", "2", "--eval-size", "1"),
        *("--sft-examples", "1", "--max-new-tokens", "8", "--difficulty", "1", "--output-dir", str(tmp_path / "run")),
    )
    monkeypatch.setattr("sys.argv", ["train_sql_agent.py", *options])
    runpy.run_path(str(SCRIPT.parents[1] / "examples" / "train_sql_agent.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].strip() for line in lines[-3:]] == ["before", "after SFT", "after RL"]
