"""SIGTERM at any moment, to each command under load: what is under way is finished or kept, as the exit code says."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from mini_agentic_rl import SqlLightningStore
from mini_agentic_rl.files import read_json
from processes import PythonProcess

from .conftest import SIZE, Attack

CLIENTS = 6


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("command", ["serve", "store", "train"])
def test_a_command_under_load_gets_sigterm(attack: Attack, tiny_folder: str, tmp_path: Path, command: str) -> None:
    for number in range(attack.times(50 if SIZE >= 1 else 10)):
        with attack.attempt(number):
            COMMANDS[command](tiny_folder, tmp_path / str(number))


def _serve(model: str, folder: Path) -> None:
    """All answers that have begun are given to their end."""
    with PythonProcess("mini_agentic_rl", "serve", "--model", model, "--port", "0") as process:
        client = openai.OpenAI(base_url=process.wait_for_word("http://"), api_key="none", max_retries=0)
        begun = threading.Barrier(CLIENTS + 1)
        finished: list[str] = []

        def ask() -> None:
            request: dict[str, Any] = {"model": client.models.list().data[0].id, "max_tokens": 256, "stream": True}
            chunks = client.chat.completions.create(messages=[{"role": "user", "content": "Count."}], **request)
            next(iter(chunks))
            begun.wait(60)
            finished.extend(chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason)

        threads = [threading.Thread(target=ask) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        begun.wait(60)
        time.sleep(random.random() / 10)
        process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert len(finished) == CLIENTS, finished
        assert process.wait(60) == 0, process.stderr


def _store(model: str, folder: Path) -> None:
    """Every rollout that was acknowledged is there afterwards."""
    path = folder / "store.db"
    acknowledged: list[str] = []
    with PythonProcess("mini_agentic_rl", "store", "--path", str(path), "--port", "0") as process:
        url = next(word for word in process.wait_for_line().split() if word.startswith("http://"))

        def enqueue() -> None:
            with httpx.Client(base_url=url, trust_env=False) as client:
                while True:
                    try:
                        answer = client.post("/v1/agl/rollouts", json={"input": "task"})
                    except httpx.HTTPError:
                        return
                    if answer.status_code not in (200, 201):
                        return
                    acknowledged.append(answer.json()["rollout_id"])

        threads = [threading.Thread(target=enqueue) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        while not acknowledged and any(thread.is_alive() for thread in threads):
            time.sleep(0.01)
        time.sleep(random.random() / 5)
        process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert process.wait(60) == 0, process.stderr
    assert acknowledged

    async def kept() -> set[str]:
        store = SqlLightningStore(path)
        found = {rollout.rollout_id for rollout in await store.query_rollouts()}
        await store.close()
        return found

    assert set(acknowledged) <= asyncio.run(kept())


def _train(model: str, folder: Path) -> None:
    """There is a whole checkpoint of the last step, and the folder is free again."""
    options = [
        *("--model", model, "--output-dir", str(folder), "--eval-size", "2", "--sft-examples", "0"),
        *("--total-steps", "100", "--tasks-per-step", "2", "--samples-per-prompt", "2", "--n-runners", "4"),
        *("--max-new-tokens", "8", "--checkpoint-every", "1000", "--max-samples", "40"),
    ]
    with PythonProcess("mini_agentic_rl", "train", *options) as process:
        process.wait_for("step 1")
        time.sleep(random.random())
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 143, process.stderr
        assert "--resume" in process.stderr
    _is_left_well(folder)
    assert read_json(folder / "checkpoints" / _newest(folder) / "state.json")["step"] >= 1


def _newest(folder: Path) -> str:
    return max(
        (path.name for path in (folder / "checkpoints").iterdir() if path.is_dir()),
        key=lambda name: int(name.replace("-", "_").rpartition("_")[2]),
    )


def _is_left_well(folder: Path) -> None:
    assert not (folder / "summary.json").exists()
    assert not (folder / ".lock").exists()
    assert not list(folder.rglob(".partial-*"))
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        json.loads(line)


COMMANDS: dict[str, Callable[[str, Path], None]] = {
    "serve": _serve,
    "store": _store,
    "train": _train,
}
