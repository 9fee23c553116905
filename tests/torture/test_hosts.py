"""Agents, the learner with its gateway, two servers that sample, and the store with PostgreSQL on hosts of their own:
many rollouts at once, and kill -9 of each process in turn. Nothing acknowledged is lost, and nothing is trained twice.

The servers speak vLLM's wire over our own engine and a tiny model.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mini_agentic_rl import SqlLightningStore
from mini_agentic_rl.types import Rollout
from pages.shell import free_port
from processes import PythonProcess
from store.postgres import needs_postgres, new_database

from .conftest import SIZE, Attack
from .lan import Lan, lan

ROLES = Path(__file__).with_name("host_roles.py")
SAMPLES = 8
SAMPLERS = ("sampler-0", "sampler-1")
KEY = "a key for the store"
ENDED = {"succeeded", "failed", "cancelled"}


class Hosts:
    """The processes of a training, each on its host; one that was killed may be started again."""

    def __init__(self, network: Lan, database: str, model: str, folder: Path, runners: int, **algorithm: Any) -> None:
        self.database = database
        self.folder = folder
        self.notes = folder / "notes.jsonl"
        self._network = network
        self._running: dict[str, PythonProcess] = {}
        self._stack = contextlib.ExitStack()
        store, gateway = free_port(), free_port()
        many = runners > 100
        learner = network.addresses["gateway"]
        reached = {"store": f"http://{network.here}:{store}", "api_key": KEY}
        algorithm |= {"gateway_host": learner, "gateway_port": gateway, "samples_per_prompt": SAMPLES}
        ports = {name: free_port() for name in SAMPLERS}
        urls = [f"http://{network.addresses['samplers']}:{port}" for port in ports.values()]
        training = {
            "model": model,
            "notes": str(self.notes),
            "folder": str(folder / "run"),
            "samplers": urls,
            "algorithm": algorithm,
            "silent_seconds": 120 if many else 10,
        }
        agents = {
            "runners": runners,
            "at_once": algorithm["tasks_per_step"] * SAMPLES if many else 1,
            "heartbeat_interval": 10.0 if many else 1.0,
        }
        self._commands: dict[str, tuple[str | None, tuple[str, ...]]] = {
            "store": (None, ("store", "--host", network.here, "--port", str(store), "--url", database)),
            **{
                name: (
                    "samplers",
                    ("sampler", json.dumps({"model": model, "host": network.addresses["samplers"], "port": port})),
                )
                for name, port in ports.items()
            },
            "learner": ("gateway", ("learner", json.dumps({**reached, **training}))),
            "runners": ("agents", ("runners", json.dumps({**reached, **agents}))),
        }
        folder.mkdir(exist_ok=True)

    def __enter__(self) -> Hosts:
        for name in self._commands:
            self.start(name)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, name: str) -> None:
        """Start a process on its host."""
        host, words = self._commands[name]
        script = "mini_agentic_rl" if name == "store" else ROLES
        process = PythonProcess(script, *words, environment={"AGL_API_KEY": KEY}, setup=self._network.entering(host))
        self._running[name] = self._stack.enter_context(process)
        if name in SAMPLERS:  # a learner that starts wants its servers to answer
            process.wait_for_line()

    def kill(self, name: str) -> None:
        """Kill a process, and start it again."""
        self._running[name].send_signal(signal.SIGKILL)
        assert self._running[name].wait(60) == -signal.SIGKILL
        self.start(name)

    def learnt(self) -> list[dict[str, Any]]:
        """Return the optimizer steps so far, with their rollouts, those of killed learners included."""
        if not self.notes.exists():
            return []
        return [json.loads(line) for line in self.notes.read_text().splitlines() if line.endswith("}")]

    def wait_for_step(self, more_than: int, seconds: float = 600.0) -> None:
        """Wait until more steps than that have been taken."""
        end = time.monotonic() + seconds
        while len(self.learnt()) <= more_than:
            for name, process in self._running.items():
                ended = not process.is_alive
                assert not ended, f"{name} has ended:\n{process.stderr[-3000:]}"
            assert time.monotonic() < end, self.told()
            time.sleep(0.05)

    def wait_for_end(self, seconds: float = 600.0) -> None:
        """Wait until the training is done."""
        try:
            assert self._running["learner"].wait(seconds) == 0, self.told()
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.told()}") from None

    def told(self) -> str:
        """Return the end of what each process said."""
        return "\n".join(f"== {name}\n{one.stdout[-300:]}{one.stderr[-1500:]}" for name, one in self._running.items())

    def rollouts(self) -> tuple[list[Rollout], Counter[str]]:
        """Return all rollouts that the database holds, and how many model calls each has recorded."""

        async def read() -> tuple[list[Rollout], Counter[str]]:
            store = SqlLightningStore(self.database)
            try:
                found = list(await store.query_rollouts())
                calls: Counter[str] = Counter()
                for one in found:
                    spans = await store.query_spans(one.rollout_id, "latest")
                    calls[one.rollout_id] = sum(span.name == "openai.chat.completion" for span in spans)
                return found, calls
            finally:
                await store.close()

        return asyncio.run(read())


@pytest.fixture
def network() -> Iterator[Lan]:
    with lan("gateway", "agents", "samplers") as made:
        yield made


@needs_postgres
@pytest.mark.timeout(3600)
def test_rollouts_at_once_through_one_gateway(attack: Attack, network: Lan, tiny_folder: str, tmp_path: Path) -> None:
    tasks = max(1, round(1000 * (SIZE if SIZE >= 1 else SIZE / 10)) // SAMPLES)
    count = tasks * SAMPLES
    given = {"total_steps": 1, "tasks_per_step": tasks, "max_new_tokens": 4, "rollout_timeout": 1800.0}
    with Hosts(network, new_database(), tiny_folder, tmp_path / "hosts", count, **given) as hosts:
        hosts.wait_for_end(1800)
        (step,) = hosts.learnt()
        found, calls = hosts.rollouts()
        trained = Counter(step["rollouts"])
        assert len(found) == count
        for one in found:
            with attack.attempt(one.rollout_id):
                assert one.status == "succeeded"
                assert calls[one.rollout_id] == 2
                assert trained.pop(one.rollout_id) == 1
        assert not trained, "what was trained is in the store"


@needs_postgres
@pytest.mark.timeout(7200)
def test_each_process_is_killed_in_turn(attack: Attack, network: Lan, tiny_folder: str, tmp_path: Path) -> None:
    victims = ["runners", "sampler-0", "learner", "store"]
    rounds = attack.times(10)
    given = {
        "tasks_per_step": 2,
        "total_steps": rounds * len(victims) + 1,
        "max_new_tokens": 4,
        "rollout_timeout": 600.0,
        "checkpoint_every": 1,
    }
    with Hosts(network, new_database(), tiny_folder, tmp_path / "hosts", 16, **given) as hosts:
        for number in range(rounds):
            for victim in victims:
                with attack.attempt((number, victim)):
                    before = len(hosts.learnt())
                    hosts.wait_for_step(before)
                    hosts.kill(victim)
        hosts.wait_for_end()
        learnt = {one["step"]: one["rollouts"] for one in hosts.learnt()}
        found, calls = hosts.rollouts()

    kept = Counter(rollout_id for ids in learnt.values() for rollout_id in ids)
    superseded = Counter(rollout_id for one in hosts.learnt() for rollout_id in one["rollouts"]) - kept
    assert sorted(learnt) == list(range(given["total_steps"]))
    with attack.attempt("nothing is trained twice"):
        assert set(kept.values()) == {1}
        assert not set(superseded) & set(kept)
    of_interrupted = 0
    for one in found:
        with attack.attempt(one.rollout_id):
            assert one.status in ENDED
            if one.rollout_id in kept:
                assert one.status == "succeeded"
                assert calls[one.rollout_id] == 2
            elif one.status == "succeeded":
                of_interrupted += 1
    with attack.attempt("what was not trained belonged to a step that a killed learner did not finish"):
        assert of_interrupted <= rounds * given["tasks_per_step"] * SAMPLES
    with attack.attempt("what was trained is in the store"):
        assert set(kept) | set(superseded) <= {one.rollout_id for one in found}
