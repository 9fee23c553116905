"""SIGTERM at any moment, to each command under load: what is under way is finished or kept, as the exit code says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import openai
import pytest

from integrations.tinker.test_server import Client
from mini_agentic_rl import SqlLightningStore
from mini_agentic_rl.files import read_json
from mini_agentic_rl.integrations.tinker.checkpoints import CheckpointFolder
from processes import PythonProcess

from .conftest import SIZE, Attack

CLIENTS = 6


@contextlib.contextmanager
def clients(count: int, work: Callable[[], None]) -> Iterator[None]:
    """Run `work` in so many threads, and wait for their end."""
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()


def stop(process: PythonProcess, within_s: float) -> None:
    """Send SIGTERM at a random moment."""
    time.sleep(random.random() * within_s)
    process.send_signal(signal.SIGTERM)


def _serve(model: str, folder: Path) -> None:
    """All answers that have begun are given to their end."""
    with PythonProcess("mini_agentic_rl", "serve", "--model", model, "--port", "0") as process:
        client = openai.OpenAI(base_url=process.wait_for_word("http://"), api_key="none", max_retries=0)
        name = client.models.list().data[0].id
        begun = threading.Barrier(CLIENTS + 1)
        finished: list[str] = []

        def ask() -> None:
            chunks = client.chat.completions.create(
                model=name, messages=[{"role": "user", "content": "Count."}], max_tokens=256, stream=True
            )
            next(iter(chunks))
            begun.wait(60)
            finished.extend(chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason)

        with clients(CLIENTS, ask):
            begun.wait(60)
            stop(process, 0.1)
        assert len(finished) == CLIENTS, finished
        assert process.wait(60) == 0, process.stderr


def _store(model: str, folder: Path) -> None:
    """Every rollout that was acknowledged is in the store afterwards."""
    path = folder / "store.db"
    acknowledged: set[str] = set()
    with PythonProcess("mini_agentic_rl", "store", "--path", str(path), "--port", "0") as process:
        url = next(word for word in process.wait_for_line().split() if word.startswith("http://"))
        begun = threading.Event()

        def enqueue() -> None:
            with httpx.Client(base_url=url, trust_env=False) as client, contextlib.suppress(httpx.HTTPError):
                while (answer := client.post("/v1/agl/rollouts", json={"input": "task"})).is_success:
                    acknowledged.add(answer.json()["rollout_id"])
                    begun.set()

        with clients(CLIENTS, enqueue):
            assert begun.wait(60)
            stop(process, 0.2)
        assert process.wait(60) == 0, process.stderr

    async def kept() -> set[str]:
        store = SqlLightningStore(path)
        rollout_ids = {rollout.rollout_id for rollout in await store.query_rollouts()}
        await store.close()
        return rollout_ids

    assert acknowledged <= asyncio.run(kept())


def _tinker(model: str, folder: Path) -> None:
    """Every state that was acknowledged as saved is there and whole, and no half of another."""
    acknowledged: set[str] = set()
    options = ("--model", model, "--port", "0", "--output-dir", str(folder))
    with PythonProcess("mini_agentic_rl", "tinker", *options) as process:
        url = process.wait_for_word("http://")
        begun = threading.Event()

        def learn() -> None:
            with contextlib.suppress(httpx.HTTPError, AssertionError, KeyError, ValueError):  # the server has ended
                client = Client(url)
                adapter = client.create(model)
                for number in range(1000):
                    client.loss(adapter)
                    client.step(adapter)
                    acknowledged.add(client.do("save_weights", adapter, path=f"state{number}")["path"])
                    begun.set()

        with clients(2, learn):
            assert begun.wait(60)
            stop(process, 0.5)
        assert process.wait(120) == 0, process.stderr
    assert not list(folder.rglob(".partial-*"))
    assert not (folder / ".lock").exists()
    assert not (folder / ".snapshots").exists()
    checkpoints = CheckpointFolder(folder)
    for path in acknowledged:
        checkpoint = checkpoints.get(path, "")
        assert (checkpoint.folder / "optimizer.pt").stat().st_size
        assert (checkpoint.folder / "adapter_model.safetensors").stat().st_size


def _train(model: str, folder: Path) -> None:
    _stop_training(
        *("train", "--model", model, "--output-dir", str(folder), "--eval-size", "2", "--sft-examples", "0"),
        *("--total-steps", "100", "--tasks-per-step", "2", "--samples-per-prompt", "2", "--n-runners", "4"),
        *("--max-new-tokens", "8", "--checkpoint-every", "1000", "--max-samples", "40"),
    )
    assert read_json(_newest_checkpoint(folder) / "state.json")["step"] >= 1


def _sft(model: str, folder: Path) -> None:
    _stop_training(
        *("sft", "--model", model, "--output-dir", str(folder), "--num-epochs", "50", "--batch-size", "1"),
        *("--logging-steps", "1", "--max-samples", "40", "--checkpoint-every", "100000"),
    )
    assert read_json(_newest_checkpoint(folder) / "trainer_state.json")["step"] >= 1


def _stop_training(*words: str) -> None:
    with PythonProcess("mini_agentic_rl", *words) as process:
        process.wait_for("step 1")
        stop(process, 1.0)
        assert process.wait(120) == 143, process.stderr
        assert "--resume" in process.stderr


def _newest_checkpoint(folder: Path) -> Path:
    """Return the last checkpoint of a run, whose folder is whole and free again."""
    assert not (folder / "summary.json").exists()
    assert not (folder / ".lock").exists()
    assert not list(folder.rglob(".partial-*"))
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        json.loads(line)
    folders = [path for path in (folder / "checkpoints").iterdir() if path.is_dir()]
    return max(folders, key=lambda path: int(path.name.replace("-", "_").rpartition("_")[2]))


COMMANDS = {"serve": _serve, "store": _store, "tinker": _tinker, "train": _train, "sft": _sft}


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_under_load_gets_sigterm(attack: Attack, tiny_folder: str, tmp_path: Path, command: str) -> None:
    for number in range(attack.times(50 if SIZE >= 1 else 10)):
        with attack.attempt(number):
            COMMANDS[command](tiny_folder, tmp_path / str(number))
