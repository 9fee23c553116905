"""Environments named by `--env`: Gymnasium's manner, one's own, and what goes wrong in them."""

from __future__ import annotations

import asyncio
import math
import sys
import threading

import pytest

from mini_agentic_rl.commands.train_config import TrainConfig, with_agent_defaults
from mini_agentic_rl.environments import (
    Endpoint,
    EnvironmentAgent,
    Episodes,
    Outcome,
    load_environment,
    load_recipe,
    load_tasks,
)
from mini_agentic_rl.errors import MissingPackageError, UserError
from mini_agentic_rl.integrations.environments import GymnasiumEnvironment
from mini_agentic_rl.runner import LitAgentRunner
from mini_agentic_rl.store import InMemoryLightningStore
from mini_agentic_rl.tracer import DummyTracer
from mini_agentic_rl.types import LLM, EnqueueRolloutRequest, RolloutConfig
from plugged import write_distribution
from recipes.playing import ScriptedServer, scripted_server

server = scripted_server


class Steps:
    """Counts to three in the manner of Gymnasium; `hanging` is what a step waits for."""

    def __init__(self, goal: int = 3, hanging: threading.Event | None = None) -> None:
        self.goal = goal
        self.hanging = hanging
        self.closed = 0

    def reset(self, *, seed=None):
        self.count = 0
        return [{"role": "system", "content": "Count."}, {"role": "user", "content": f"seed {seed}"}], {}

    def step(self, action):
        if self.hanging is not None:
            self.hanging.wait()
        self.count += 1
        return f"you said {action}", 0.5 if action == str(self.count) else 0.0, self.count >= self.goal, False, {}

    def close(self):
        self.closed += 1


class OldSteps(Steps):
    """As before Gymnasium: an observation alone, and four values."""

    def reset(self, *, seed=None):
        self.count = 0
        return f"seed {seed}"

    def step(self, action):
        observation, reward, ended, _, info = super().step(action)
        return observation, reward, ended, info


class Numbers(Steps):
    def reset(self, *, seed=None):
        return 7, {}


@pytest.mark.parametrize("kind", ["Steps", "OldSteps"])
async def test_a_gymnasium_environment_is_reset_with_a_seed_and_stepped_with_answers(kind, server: ScriptedServer):
    env = load_environment(f"gymnasium:integrations.environments.test_worlds:{kind}?goal=2&max_turns=5")
    task = env.tasks("train", 1)[0]
    server.says("1", "two", "3")
    outcome = await env.rollout(task, Endpoint(server.endpoint, "m", sampling={"temperature": 0.5}))
    assert outcome == Outcome({"reward": 0.5, "turns": 2.0}, "two")
    asked = server.requests[1]["messages"]
    assert [message["content"] for message in asked][-3:] == [f"seed {task['seed']}", "1", "you said 1"]
    assert (asked[0]["role"] == "system") == (kind == "Steps")
    assert server.requests[0]["temperature"] == 0.5


async def test_max_turns_ends_an_environment_that_goes_on_and_it_is_closed(server: ScriptedServer):
    made = []
    env = GymnasiumEnvironment("endless", lambda: made.append(Steps(goal=99)) or made[-1], max_turns=2, system="Play.")
    server.says("1", "2")
    outcome = await env.rollout({"seed": 1}, Endpoint(server.endpoint, "m"))
    assert outcome.rewards == {"reward": 1.0, "turns": 2.0}
    assert server.requests[0]["messages"][0] == {"role": "system", "content": "Play."}
    while not made[0].closed:  # by the rollout's thread, which nobody waits for
        await asyncio.sleep(0.01)
    env = load_environment("gymnasium:integrations.environments.test_worlds:Numbers")
    with pytest.raises(ValueError, match="an observation is a int: text, a message"):
        await env.rollout({"seed": 1}, Endpoint(server.endpoint, "m"))


def test_splits_of_seeds_share_none():
    env = load_environment("gymnasium:integrations.environments.test_worlds:Steps")
    seeds = {split: {row["seed"] for row in env.tasks(split, 500, 7)} for split in ("train", "val", "test")}
    assert all(len(found) == 500 for found in seeds.values())
    assert not seeds["train"] & seeds["val"]
    assert not seeds["train"] & seeds["test"]
    assert not {row["seed"] for row in env.tasks("train", 500, 8)} & seeds["test"]
    task = env.tasks("train", 3)[1]
    assert task["question"] == f"integrations.environments.test_worlds:Steps, seed {task['seed']}"


class Own:
    """An environment of one's own, which goes wrong as its task says."""

    released = threading.Event()

    def tasks(self, split, size, seed=0):
        return [{"case": f"{split} {number}"} for number in range(size)]

    async def rollout(self, task, endpoint):
        match task["case"]:
            case "raises":
                raise LookupError("the maze has no exit")
            case "hangs":
                await asyncio.Event().wait()
            case "nothing":
                return {}
            case "none":
                return Outcome({"reward": None})
            case "nan":
                return Outcome({"reward": math.nan})
            case "infinite":
                return Outcome({"reward": 1.0, "bonus": math.inf})
        return Outcome({"reward": 1.0, "extra": None})


class Blocking(Own):
    """One whose rollout is an ordinary function that blocks."""

    def rollout(self, task, endpoint):
        if task["case"] == "hangs":
            self.released.wait()
        return Outcome({"reward": 1.0})


async def ended(environment, cases: list[str]) -> dict[str, str]:
    """Run one rollout for each case, all in one runner, and return how each ended."""
    store = InMemoryLightningStore()
    await store.update_resources("r", {"llm": LLM(endpoint="http://127.0.0.1:1/v1", model="m")})
    # A fine rollout has as long as it needs, on a busy machine too.
    limits = {"hangs": RolloutConfig(timeout_seconds=0.2)}
    await store.enqueue_many_rollouts(
        [EnqueueRolloutRequest(input={"case": case}, config=limits.get(case)) for case in cases]
    )
    runners = [LitAgentRunner(DummyTracer(), max_rollouts=1) for _ in cases]
    agent = EnvironmentAgent(environment)

    async def work(number: int, runner: LitAgentRunner) -> None:
        with runner.run_context(agent=agent, store=store, worker_id=number):
            await runner.iter()

    await asyncio.gather(*(work(number, runner) for number, runner in enumerate(runners)))
    found = {}
    for rollout in await store.query_rollouts():
        attempt = await store.get_latest_attempt(rollout.rollout_id)
        found[rollout.input["case"]] = f"{rollout.status}: {attempt.metadata.get('error', '')}"
    return found


async def test_what_goes_wrong_in_an_environment_fails_its_rollout_alone():
    found = await ended(Own(), ["raises", "hangs", "nothing", "none", "nan", "infinite", "is fine"])
    assert found["is fine"] == "succeeded: "
    assert all(told.startswith("failed: ") for case, told in found.items() if case != "is fine")
    assert "the agent: LookupError: the maze has no exit" in found["raises"]
    assert "timeout_seconds=0.2, which `rollout_timeout` sets" in found["hangs"]
    assert "returned a dict, not an Outcome" in found["nothing"]
    assert "gave no 'reward', only ['reward']" in found["none"]
    assert "'reward' is nan, and not finite" in found["nan"]
    assert "'bonus' is inf, and not finite" in found["infinite"]


async def test_a_blocking_environment_that_hangs_holds_up_no_other():
    found = await ended(Blocking(), ["hangs", "is fine"])
    Own.released.set()
    assert "`rollout_timeout` sets" in found["hangs"]
    assert found["is fine"] == "succeeded: "


def test_an_environment_is_the_agent_and_the_tasks_of_a_training():
    found = with_agent_defaults(TrainConfig(env="integrations.environments.test_worlds:Own"))
    assert found.tasks.agent == found.tasks.dataset == "env:integrations.environments.test_worlds:Own"
    assert found.run.output_dir.as_posix() == "outputs/integrations.environments.test_worlds-Own-agent"
    assert with_agent_defaults(TrainConfig(**found.flat())).tasks == found.tasks
    agent = load_recipe(found.tasks.agent, found.tasks.dataset).agent
    assert type(agent.environment).__name__ == "Own"
    rows = load_tasks(found.tasks.dataset, "train", 2, 0, [1])
    assert list(rows) == [
        {"question": '{"answer": "", "case": "train 0"}', "id": "train-0", "answer": "", "case": "train 0"},
        {"question": '{"answer": "", "case": "train 1"}', "id": "train-1", "answer": "", "case": "train 1"},
    ]
    by_env, by_dataset = (
        with_agent_defaults(TrainConfig(**{name: "reasoning_gym:chain_sum"})) for name in ("env", "dataset")
    )
    assert by_env.changed(env=None).flat() == by_dataset.flat()
    assert isinstance(load_environment("guess"), Episodes)
    for other in ({"agent": "math2"}, {"dataset": "gsm8k"}):
        with pytest.raises(UserError, match=r"an environment has its own: leave `(agent|dataset)` out"):
            with_agent_defaults(TrainConfig(env="integrations.environments.test_worlds:Own", **other))


def test_a_plugin_offers_an_environment(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "from integrations.environments.test_worlds import Own\n\nclass Maze(Own):\n    pass\n"
    write_distribution(tmp_path, "maze-things", {"environments": {"maze": "mazes:Maze"}}, {"mazes": text})
    assert type(load_recipe("env:maze").agent.environment).__name__ == "Maze"
    assert len(load_tasks("env:maze", "test", 3, 0, [1])) == 3


class Broken:
    def __init__(self):
        raise ValueError("no ink left")


class Raising(Own):
    def tasks(self, split, size, seed=0):
        if split == "val":
            return []
        raise OSError("no paper left")


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("chess", "'chess' is unknown: give verifiers:NAME, openenv:URL, gymnasium:ID"),
        ("verifiers:", "names no environment: write it as verifiers:NAME"),
        ("integrations.environments.test_worlds:Broken", "cannot be loaded: ValueError: no ink left"),
        ("integrations.environments.test_worlds:Missing", "cannot be loaded: AttributeError"),
        ("gymnasium:integrations.environments.test_worlds:Missing", "cannot be loaded: AttributeError"),
        ("integrations.environments.test_worlds:Steps", "is a Steps, which lacks `tasks` or `rollout`"),
        ("gymnasium:integrations.environments.test_worlds:Steps?max_turns=many", "max_turns='many': a whole number"),
        ("gymnasium:integrations.environments.test_worlds:Steps?max_turns", "options are written as"),
    ],
)
def test_an_environment_that_cannot_be_had_is_told_in_one_line(spec, complaint):
    with pytest.raises(UserError, match=complaint) as told:
        load_environment(spec)
    assert told.value.setting == "env"


def test_an_environment_without_tasks_is_told_in_one_line():
    for split, complaint in (("val", "has no tasks in the split val"), ("train", "no tasks: OSError: no paper left")):
        with pytest.raises(UserError, match=complaint):
            load_tasks("env:integrations.environments.test_worlds:Raising", split, 2, 0, [1])


def test_a_package_that_is_not_there_is_named_with_its_extra(monkeypatch):
    for module in ("verifiers", "openenv", "openenv.core", "gymnasium"):
        monkeypatch.setitem(sys.modules, module, None)
    for spec in ("verifiers:x", "openenv:http://x", "gymnasium:X-v1"):
        with pytest.raises(MissingPackageError, match=r"needs (\w|-)+.*mini-agentic-rl\[environments\]"):
            load_environment(spec)
