"""Use the package as on Windows: import every module and public name, show the help of every command, run `doctor`,
resume a killed training, serve a store and a model, run agents in processes, lock a folder, keep checkpoints, and bound
helper processes.

It is one process, because importing all takes longer than all of the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import bounded_helpers
import letters
import pytest
from openai import AsyncOpenAI
from typer.main import get_command
from typer.testing import CliRunner

import mini_agentic_rl
from gateway.tiny_server import tiny_server
from mini_agentic_rl import LightningStoreClient, SqlLightningStore, Trainer
from mini_agentic_rl.algorithm import Baseline
from mini_agentic_rl.errors import MissingPackageError, UserError
from mini_agentic_rl.execution import ClientServerExecutionStrategy
from mini_agentic_rl.files import atomic, one_writer
from mini_agentic_rl.litagent import rollout
from mini_agentic_rl.policy.model_files import _publish, embedded_path
from mini_agentic_rl.rewards import same_answer
from mini_agentic_rl.store import LightningStoreServer
from mini_agentic_rl.trainer import RunFolder
from mini_agentic_rl.visible_text import visible_argument

POSIX_PROGRAMS = "mini_agentic_rl.recipes.harness.programs"
"""Run by an interpreter of their own, where commands can be agents: on Linux and macOS."""

SECOND_WRITER = """
import sys
from pathlib import Path
from mini_agentic_rl.files import one_writer
with one_writer(Path(sys.argv[1])):
    pass
"""


def import_every_name() -> None:
    failures, names = [], 0

    def failed(name: str) -> None:
        if not isinstance(sys.exc_info()[1], MissingPackageError):
            failures.append((name, repr(sys.exc_info()[1])))

    for info in walk_packages(mini_agentic_rl.__path__, "mini_agentic_rl.", onerror=failed):
        if info.name.endswith("__main__") or info.name.startswith(POSIX_PROGRAMS):
            continue
        try:
            module = import_module(info.name)
            for name in getattr(module, "__all__", ()):
                getattr(module, name)
                names += 1
        except Exception:
            failed(info.name)
    assert not failures, failures
    assert names > 800


def show_the_help_of_every_command() -> None:
    main = get_command(mini_agentic_rl.cli.app)
    assert len(main.commands) > 20
    for command in ([], *([name] for name in main.commands)):
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            assert not main.main([*command, "--help"], standalone_mode=False)
        assert "Usage" in shown.getvalue(), command
    doctor = CliRunner().invoke(mini_agentic_rl.cli.app, ["doctor", "--no-speed-test"], env={"COLUMNS": "300"})
    assert "checked 20 times a second" in doctor.output, doctor.output


def train(folder: Path, **how: Any) -> Mapping[str, Any]:
    """Train two letters; return the summary."""
    trained = letters.algorithm(**letters.RESUMABLE)
    letters.run(trained, letters.Letters(), letters.TASKS, folder, [letters.CountLetters()], **how)
    return trained.summary


def resume_a_killed_training(folder: Path) -> None:
    killed = os.fork()
    if not killed:
        train(folder, die_after=3)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(killed, 0)[1]) == signal.SIGKILL
    assert train(folder, resume=True)["steps"] == 4
    assert not list((folder / "checkpoints").glob(".*"))


@rollout
def agent(task: int) -> float:
    return float(os.getpid() != task)


async def serve_a_store_on_a_file(folder: Path) -> None:
    store = SqlLightningStore(folder / "store.db")
    server = LightningStoreServer(store, port=0)
    await server.start()
    try:
        client = LightningStoreClient(server.endpoint)
        queued = await client.enqueue_rollout({"question": "1 + 1"}, mode="train")
        claimed = await client.dequeue_rollout(worker_id="w")
        assert claimed is not None
        assert claimed.rollout_id == queued.rollout_id
        await client.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
        assert [one.status for one in await client.query_rollouts()] == ["succeeded"]
        await client.close()
    finally:
        await server.close()


def run_agents_in_processes(folder: Path) -> None:
    strategy = ClientServerExecutionStrategy(server_port=0, graceful_timeout=5, terminate_timeout=2)
    store = SqlLightningStore(folder / "processes.db")
    Trainer(algorithm=Baseline(), strategy=strategy, store=store).fit(agent, [0, 1, 2, 3])
    runs = asyncio.run(store.query_rollouts())
    assert [one.status for one in runs] == ["succeeded"] * 4


async def ask_a_model() -> None:
    number = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {"type": "boolean"}}}
    with tiny_server() as tiny:
        client = AsyncOpenAI(base_url=tiny.server.endpoint, api_key="none", max_retries=0)
        ask = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
        reply = await client.chat.completions.create(**ask)
        assert reply.usage.completion_tokens > 0
        reply = await client.chat.completions.create(**ask, response_format=number)
        assert isinstance(json.loads(reply.choices[0].message.content), bool)


def lock_a_folder(folder: Path) -> None:
    with one_writer(folder / "run"):
        command = [sys.executable, "-c", SECOND_WRITER, str(folder / "run")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "is being written by another run" in done.stderr
    assert list((folder / "run").iterdir()) == []


def keep_checkpoints(path: Path) -> None:
    """An open file cannot be renamed on Windows: checkpoints are written, replaced, removed and found again."""
    run = RunFolder(path)
    run.begin({"model": "m"})
    for step in (1, 2, 3, 3):
        run.save_checkpoint(step, lambda folder, step=step: (folder / "state.json").write_text(str(step)))
    resumed = RunFolder(path)
    assert resumed.begin({"model": "m"}, resume=True) == "resumed"
    assert [(step, (folder / "state.json").read_text()) for step, folder in resumed.checkpoints()] == [
        (2, "2"),
        (3, "3"),
    ]
    assert not list(run.checkpoints_path.glob(".*"))


def replace_what_another_program_reads(folder: Path) -> None:
    """A virus scanner or the dashboard has a file open for an instant: it is replaced afterwards."""
    run = folder / "read"
    atomic.write_folder(run, lambda written: (written / "summary.json").write_text("{}"))
    for write in (
        lambda: atomic.write_json(run / "summary.json", {"steps": 1}),
        lambda: atomic.write_folder(run, lambda written: (written / "summary.json").write_text('{"steps": 1}')),
    ):
        reader = (run / "summary.json").open()
        closing = threading.Timer(0.3, reader.close)
        closing.start()
        write()
        closing.join()
        assert atomic.read_json(run / "summary.json") == {"steps": 1}
    with (run / "summary.json").open():
        began = time.monotonic()
        with pytest.raises(PermissionError):
            atomic.write_json(run / "summary.json", {"steps": 2})
        assert time.monotonic() - began < 30
    assert [path.name for path in run.iterdir()] == ["summary.json"]


def replace_a_run_that_another_program_reads(path: Path) -> None:
    """What a dashboard has open cannot be removed: the message names it, and the next try replaces the run."""
    run = RunFolder(path)
    run.begin({"model": "m"})
    run.rollouts_path.write_text("rows")
    with run.rollouts_path.open(), pytest.raises(UserError, match="cannot be removed"):
        RunFolder(path).begin({"model": "m"}, overwrite=True)
    assert RunFolder(path).begin({"model": "m"}, overwrite=True) == "new"
    assert not run.rollouts_path.exists()


def publish_the_embedded_model(folder: Path) -> None:
    """Its files are synced to disk, which Windows does only for a file that may be written."""
    os.environ["MINI_AGENTIC_RL_CACHE"] = str(folder / "cache")
    embedded_path().parent.mkdir(parents=True)
    for name in ("first", "second"):  # of two processes
        (folder / name).mkdir()
        (folder / name / "model.safetensors").write_text(name)
        _publish(folder / name, embedded_path())
    assert (embedded_path() / "model.safetensors").read_text() == "first"


def show_commands_to_type() -> None:
    """What is printed can be typed into cmd and PowerShell, which know double quotes."""
    assert visible_argument(Path(r"outputs\reviews\adapter")) == r"outputs\reviews\adapter"
    assert visible_argument(r"D:\my agent\adapter") == r'"D:\my agent\adapter"'


def main() -> None:
    assert not eval("hasattr(os, 'fork')", vars(atomic)), "the simulation is off"
    folder = Path(sys.argv[1])
    resume_a_killed_training(folder / "killed")  # first, because it forks
    import_every_name()
    show_the_help_of_every_command()
    asyncio.run(serve_a_store_on_a_file(folder))
    run_agents_in_processes(folder)
    asyncio.run(ask_a_model())
    lock_a_folder(folder)
    keep_checkpoints(folder / "checkpointed")
    replace_what_another_program_reads(folder)
    replace_a_run_that_another_program_reads(folder / "open")
    publish_the_embedded_model(folder)
    show_commands_to_type()
    bounded_helpers.main()
    asyncio.run(bounded_helpers.bound_a_grammar(seconds=0.2, mib=1024, setting="max_grammar_seconds"))
    assert same_answer(r"\frac{\sqrt{12}}{2}", r"\sqrt{3}")


if __name__ == "__main__":
    main()
