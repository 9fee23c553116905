"""Two trainings set out for one folder, at every distance in time and in every mode: one of them writes it."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from mini_agentic_rl import SqlLightningStore

from .conftest import Attack

TASKS = 4
WRITER = f"""
import asyncio, json, sys, time
from mini_agentic_rl import SqlLightningStore, Trainer, litagent, rollout
from mini_agentic_rl.algorithm import Baseline
from mini_agentic_rl.errors import UserError

@rollout
def agent(task):
    time.sleep(0.02)
    return 1.0

print("ready", flush=True)
for line in sys.stdin:
    name, folder, mode = json.loads(line)
    try:
        trainer = Trainer(algorithm=Baseline(), output_dir=folder, strategy="shm", n_runners=1, **mode)
        trainer.fit(agent, [f"{{name}}{{number}}" for number in range({TASKS})])
        answer = "done"
    except UserError as error:
        answer = str(error)
    print(json.dumps(answer), flush=True)
"""
MODES: tuple[dict[str, bool], ...] = ({}, {"resume": True}, {"overwrite": True})


class Writer:
    """A process that trains where it is told to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._line() == "ready\n"

    def train(self, folder: Path, mode: dict[str, bool]) -> Any:
        """Train in a folder, and return what it says at the end."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([self.name, str(folder), mode]) + "\n")
        self.process.stdin.flush()
        return json.loads(self._line())

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


def test_two_trainings_set_out_for_one_folder(attack: Attack, tmp_path: Path) -> None:
    writers = [Writer("a"), Writer("b")]
    ways = list(itertools.product([0.02 * step for step in range(20)], MODES))
    random.Random(0).shuffle(ways)
    refused = 0
    try:
        for number, (offset, mode) in enumerate(itertools.islice(itertools.cycle(ways), attack.times(60))):
            with attack.attempt((offset, mode), limit_s=120):
                refused += _compete(writers, tmp_path / str(number), offset, mode)
                shutil.rmtree(tmp_path / str(number))
        assert refused, "nobody was in another's way: the two did not meet"
    finally:
        for writer in writers:
            writer.process.kill()
            writer.process.wait()


def _compete(writers: list[Writer], folder: Path, offset: float, mode: dict[str, bool]) -> bool:
    """Let both train, the second so many seconds later; return whether one was refused because of the other."""
    answers: dict[str, str] = {}

    def train(writer: Writer, delay: float) -> None:
        time.sleep(delay)
        answers[writer.name] = writer.train(folder, mode)

    threads = [threading.Thread(target=train, args=(writer, offset * at)) for at, writer in enumerate(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other = {"a": writers[1].process.pid, "b": writers[0].process.pid}
    locked = [name for name, said in answers.items() if f"another run: process {other[name]} on " in said]
    came_later = [name for name, said in answers.items() if "holds a finished run" in said]
    trained = [name for name, said in answers.items() if said == "done"]
    assert len(locked) + len(came_later) + len(trained) == 2, answers
    assert len(trained) == 2 or len(locked + came_later) == 1, answers
    assert json.loads((folder / "summary.json").read_text())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len([row for row in rows if "step" in row]) == len(rows)
    assert _owners(folder) in [{name} for name in trained]
    assert not (folder / ".lock").exists()
    return bool(locked)


def _owners(folder: Path) -> set[str]:
    """Return whose rollouts are in the folder, after a look that none is missing or doubled."""

    async def inputs() -> list[str]:
        store = SqlLightningStore(folder / "rollouts.db")
        try:
            return [str(rollout.input) for rollout in await store.query_rollouts()]
        finally:
            await store.close()

    found = asyncio.run(inputs())
    assert sorted(task[1:] for task in found) == [str(number) for number in range(TASKS)], found
    return {task[0] for task in found}
