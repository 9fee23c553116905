"""A training with its processes apart: runners, a learner with its gateway, two samplers, and a store on PostgreSQL.

Each process is killed in turn. Nothing acknowledged is lost, and nothing is trained twice. The samplers speak vLLM's
protocol over our own engine and a tiny model.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mini_agentic_rl import SqlLightningStore
from mini_agentic_rl.types import Rollout
from processes import PythonProcess, free_port
from store.postgres import needs_postgres, new_database

from .conftest import Attack

ROLES = Path(__file__).with_name("training_roles.py")
SAMPLES = 8
RUNNERS = 16
TASKS_PER_STEP = 2
SAMPLERS = ("sampler-0", "sampler-1")
KEY = "a key for the store"


class Training:
    """The processes of a training; one that was killed is started again."""

    def __init__(self, database: str, model: str, folder: Path, total_steps: int) -> None:
        self.database = database
        self.notes = folder / "notes.jsonl"
        self._running: dict[str, PythonProcess] = {}
        self._stack = contextlib.ExitStack()
        store, *samplers = (free_port() for _ in range(3))
        reached = {"store": f"http://127.0.0.1:{store}", "api_key": KEY}
        learner = {
            **reached,
            "model": model,
            "notes": str(self.notes),
            "folder": str(folder / "run"),
            "samplers": [f"http://127.0.0.1:{port}" for port in samplers],
            "algorithm": {
                "gateway_port": free_port(),
                "samples_per_prompt": SAMPLES,
                "tasks_per_step": TASKS_PER_STEP,
                "total_steps": total_steps,
                "max_new_tokens": 4,
                "rollout_timeout": 600.0,
                "checkpoint_every": 1,
            },
        }
        self._commands: dict[str, tuple[str, ...]] = {"store": ("store", "--port", str(store), "--url", database)}
        for name, port in zip(SAMPLERS, samplers, strict=True):
            self._commands[name] = ("sampler", json.dumps({"model": model, "port": port}))
        self._commands["learner"] = ("learner", json.dumps(learner))
        self._commands["runners"] = ("runners", json.dumps({**reached, "runners": RUNNERS}))
        folder.mkdir(exist_ok=True)

    def __enter__(self) -> Training:
        for name in self._commands:
            self.start(name)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, name: str) -> None:
        script = "mini_agentic_rl" if name == "store" else ROLES
        process = PythonProcess(script, *self._commands[name], environment={"AGL_API_KEY": KEY})
        self._running[name] = self._stack.enter_context(process)
        if name in SAMPLERS:  # the learner expects its samplers to answer
            process.wait_for_line()

    def kill(self, name: str) -> None:
        """Kill a process, and start it again."""
        self._running[name].send_signal(signal.SIGKILL)
        assert self._running[name].wait(60) == -signal.SIGKILL
        self.start(name)

    def steps(self) -> list[dict[str, Any]]:
        """Return the optimizer steps so far with their rollouts, those of killed learners included."""
        if not self.notes.exists():
            return []
        return [json.loads(line) for line in self.notes.read_text().splitlines() if line.endswith("}")]

    def wait_for_step(self, seconds: float = 600.0) -> None:
        """Wait for the next optimizer step."""
        before, end = len(self.steps()), time.monotonic() + seconds
        while len(self.steps()) <= before:
            for name, process in self._running.items():
                assert process.is_alive, f"{name} has ended:\n{process.stderr[-3000:]}"
            assert time.monotonic() < end, self._output()
            time.sleep(0.05)

    def wait_for_end(self, seconds: float = 600.0) -> None:
        assert self._running["learner"].wait(seconds) == 0, self._output()

    def _output(self) -> str:
        return "\n".join(
            f"== {name}\n{each.stdout[-300:]}{each.stderr[-1500:]}" for name, each in self._running.items()
        )

    async def rollouts(self) -> tuple[list[Rollout], Counter[str]]:
        """Return all rollouts of the database, and the number of recorded model calls of each."""
        store = SqlLightningStore(self.database)
        try:
            rollouts = list(await store.query_rollouts())
            calls: Counter[str] = Counter()
            for rollout in rollouts:
                spans = await store.query_spans(rollout.rollout_id, "latest")
                calls[rollout.rollout_id] = sum(span.name == "openai.chat.completion" for span in spans)
            return rollouts, calls
        finally:
            await store.close()


@needs_postgres
@pytest.mark.timeout(7200)
def test_each_process_is_killed_in_turn(attack: Attack, tiny_folder: str, tmp_path: Path) -> None:
    victims = ["runners", "sampler-0", "learner", "store"]
    rounds = attack.times(10)
    total_steps = rounds * len(victims) + 1
    with Training(new_database(), tiny_folder, tmp_path / "training", total_steps) as training:
        for number in range(rounds):
            for victim in victims:
                with attack.attempt((number, victim)):
                    training.wait_for_step()
                    training.kill(victim)
        training.wait_for_end()
        steps = training.steps()
        rollouts, calls = asyncio.run(training.rollouts())

    last = {step["step"]: step["rollouts"] for step in steps}
    kept = Counter(rollout_id for ids in last.values() for rollout_id in ids)
    superseded = Counter(rollout_id for step in steps for rollout_id in step["rollouts"]) - kept
    assert sorted(last) == list(range(total_steps))
    with attack.attempt("nothing is trained twice"):
        assert set(kept.values()) == {1}
        assert not set(superseded) & set(kept)
    for rollout in rollouts:
        with attack.attempt(rollout.rollout_id):
            assert rollout.status in {"succeeded", "failed", "cancelled"}
            if rollout.rollout_id in kept:
                assert rollout.status == "succeeded"
                assert calls[rollout.rollout_id] == 2
    with attack.attempt("an untrained rollout belongs to a step that a killed learner did not finish"):
        succeeded = {rollout.rollout_id for rollout in rollouts if rollout.status == "succeeded"}
        assert len(succeeded - set(kept)) <= rounds * TASKS_PER_STEP * SAMPLES
    with attack.attempt("all trained rollouts are in the store"):
        assert set(kept) | set(superseded) <= {rollout.rollout_id for rollout in rollouts}
