"""Parts of runners on Ray that need no Ray: settings, addresses, and the replacement of lost runners."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from mini_agentic_rl.commands import TrainConfig
from mini_agentic_rl.commands.options import read_settings
from mini_agentic_rl.commands.train import _runners
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.execution import RayExecutionStrategy, RaySettings, ThreadingEvent
from mini_agentic_rl.execution.client_server import Patience
from mini_agentic_rl.http import own_address, reached_at
from mini_agentic_rl.integrations.ray.cluster import ActorLostError, Place, RunnerSetup
from mini_agentic_rl.integrations.ray.runners import RayRunners
from mini_agentic_rl.integrations.ray.strategy import runtime_environment
from mini_agentic_rl.store import InMemoryLightningStore, LightningStoreClient
from mini_agentic_rl.trainer import Trainer


def test_an_environment_is_a_folder_a_url_a_file_or_a_mapping(tmp_path: Path) -> None:
    file = tmp_path / "env.yaml"
    file.write_text("env_vars: {KEY: value}\npip: [requests]\n")
    assert runtime_environment(None) == {}
    assert runtime_environment(str(tmp_path)) == {"working_dir": str(tmp_path)}
    assert runtime_environment("https://host/code.zip") == {"working_dir": "https://host/code.zip"}
    assert runtime_environment(str(file)) == {"env_vars": {"KEY": "value"}, "pip": ["requests"]}
    assert runtime_environment({"env_vars": {}}) == {"env_vars": {}}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("gone", None, "neither a folder"),
        ("env.txt", "pip: []", "neither a folder"),
        ("env.yaml", "- pip", "holds no runtime environment"),
        ("env.yaml", "pip: [", "cannot be read"),
    ],
)
def test_an_environment_that_is_none_is_refused_in_one_line(
    tmp_path: Path, name: str, text: str | None, said: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=said) as refused:
        RayExecutionStrategy(runner_env=str(tmp_path / name))
    assert refused.value.setting == "runner_env"
    assert "\n" not in str(refused.value)


def test_the_strategy_is_made_by_its_name_with_settings_by_name() -> None:
    trainer = Trainer(strategy={"type": "ray", "runner_cpus": 0.5, "runner_gpus": 2}, n_runners=6, port=5000)
    strategy = trainer.strategy
    assert isinstance(strategy, RayExecutionStrategy)
    assert strategy.settings == RaySettings(runner_cpus=0.5, runner_gpus=2)
    assert (strategy.n_runners, trainer.n_runners, strategy.server_port) == (6, 6, 5000)
    assert isinstance(Trainer(strategy="ray").strategy, RayExecutionStrategy)
    for settings in ({"n_runners": 0}, {"graceful_timeout": -1}, {"runner_cpus": -1}, {"runner_cpu": 1}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            RayExecutionStrategy(**settings)


def test_a_cluster_seen_from_outside_is_refused() -> None:
    strategy = RayExecutionStrategy(address="ray://head:10001")

    async def nothing(*given: Any) -> None: ...

    with pytest.raises(UserError, match="start the training on one of its nodes") as refused:
        strategy.execute(nothing, nothing, InMemoryLightningStore())
    assert refused.value.setting == "ray_address"


def test_options_of_the_command_reach_the_strategy() -> None:
    given = {"strategy": "ray", "ray_address": "head:6379", "runner_cpus": 0.25, "runner_gpus": 1, "n_runners": 64}
    config = read_settings(TrainConfig, given)
    assert config.ray == RaySettings(address="head:6379", runner_cpus=0.25, runner_gpus=1)
    assert _runners(config, {}) == 64
    assert TrainConfig(**config.flat()).ray == config.ray


def test_runners_that_are_processes_of_this_computer_are_few(monkeypatch: Any) -> None:
    monkeypatch.delenv("AGL_SERVER_PORT", raising=False)
    for given, components, runners in (
        ({}, {}, TrainConfig().n_runners),
        ({"strategy": "cs"}, {}, 4),
        ({"strategy": "cs", "n_runners": 9}, {}, 9),
        ({}, {"strategy": "shm"}, TrainConfig().n_runners),
    ):
        config = TrainConfig(**given)
        assert _runners(config, components) == runners


async def test_what_is_started_for_runners_elsewhere_listens_where_they_reach_it() -> None:
    assert own_address() == "127.0.0.1"
    with reached_at("192.0.2.7"):
        assert await asyncio.to_thread(own_address) == "192.0.2.7"
    assert own_address() == "127.0.0.1"


class FakeActor:
    """An actor that runs until it is stopped; `fate` is lost, ends or runs."""

    def __init__(self, fate: str) -> None:
        self.fate = fate
        self.stopped = asyncio.Event()
        self.ended = False

    async def call(self, method: str) -> Any:
        if method == "load":
            return Place("node", 1)
        if self.fate == "lost":
            raise ActorLostError("the node is gone")
        if self.fate == "runs":
            await self.stopped.wait()
        return None

    def tell(self, method: str) -> None:
        self.stopped.set()

    def end(self) -> None:
        self.ended = True


class FakeCluster:
    def __init__(self, *fates: str) -> None:
        self.fates = list(fates)
        self.actors: list[FakeActor] = []

    def put(self, value: Any) -> Any:
        return value

    def start(self, kind: Any, *arguments: Any, **options: Any) -> FakeActor:
        self.actors.append(FakeActor(self.fates.pop(0)))
        return self.actors[-1]


@pytest.mark.parametrize(("fates", "stops"), [(("lost", "ends", "ends"), False), (("runs", "lost", "runs"), True)])
async def test_a_lost_runner_is_replaced_and_all_end_with_the_run(fates: tuple[str, ...], stops: bool) -> None:
    cluster: Any = FakeCluster(*fates)
    store = pickle.dumps(LightningStoreClient("http://127.0.0.1:9"))
    setup = RunnerSetup(b"", store, (), None)
    runners, event = RayRunners(cluster, setup, 2, Patience(5.0, 1.0)), ThreadingEvent()
    with mock.patch("mini_agentic_rl.integrations.ray.runners.give_back_of_worker") as give_back:
        running = asyncio.create_task(runners.run(event))
        while len(cluster.actors) < 3:
            await asyncio.sleep(0.01)
        if stops:
            event.set()
        await asyncio.wait_for(running, 30)
    assert "was lost: the node is gone" in give_back.call_args.args[2]
    assert all(actor.ended for actor in cluster.actors)
