"""What another distribution offers by entry points is found by its name, and a broken one disturbs nothing."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from command_line import invoke
from mini_agentic_rl.algorithm import LOSSES, PRESETS, GRPOSettings
from mini_agentic_rl.commands import TrainConfig
from mini_agentic_rl.datasets import load_examples, load_task_dataset
from mini_agentic_rl.environments import load_recipe
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.metrics import make_logger
from mini_agentic_rl.plugins import installed_plugins, load_plugin, plugin_names
from mini_agentic_rl.rewards import load_reward
from mini_agentic_rl.samplers import SamplerSettings, make_sampler
from plugged import write_distribution

MODULE = """
from mini_agentic_rl.algorithm.losses import PolicyLoss, Surrogate
from mini_agentic_rl.litagent import LitAgent
from mini_agentic_rl.metrics import MetricsLogger


class Parrot(LitAgent):
    def rollout(self, task, resources, rollout):
        return 1.0


def brevity(completion):
    return -float(len(completion))


def rhymes(split, size, seed, name="all"):
    return [{"question": f"what rhymes with {name} {number}?", "answer": split} for number in range(size or 3)]


def surrogate(terms):
    return Surrogate(terms.logprobs_S * terms.advantages_S)


LOSS = PolicyLoss(surrogate)


class Diary(MetricsLogger):
    def __init__(self, folder, configuration):
        self.path = folder / "diary.txt"

    def log(self, metrics, *, step):
        with self.path.open("a") as diary:
            diary.write(f"{step} {sorted(metrics)}")


def sampler(settings, policy, *, base_name, prompts):
    raise RuntimeError(f"asked for {base_name}")
"""
POINTS = {
    "agents": {"parrot": "rhyming:Parrot"},
    "rewards": {"brevity": "rhyming:brevity"},
    "datasets": {"rhymes": "rhyming:rhymes"},
    "losses": {"plain": "rhyming:LOSS"},
    "loggers": {"diary": "rhyming:Diary"},
    "samplers": {"elsewhere": "rhyming:sampler"},
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder that is first on the path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture
def rhyming(folder: Path):
    """A distribution with a plugin of most kinds."""
    write_distribution(folder, "rhyming-things", POINTS, {"rhyming": MODULE}, version="2.1")
    yield folder
    LOSSES.pop("plain", None)
    PRESETS.pop("plain", None)


def listed(*arguments: str) -> str:
    result = invoke("plugins", *arguments)
    assert result.exit_code == 0
    return result.stdout


def test_a_plugin_of_every_kind_is_found_where_a_built_in_name_is_looked_up(rhyming):
    assert load_recipe("parrot").agent.rollout({}, {}, None) == 1.0
    assert load_reward("brevity")(["four"]) == [-4.0]
    tasks = load_task_dataset("rhymes:moon", "val", 2)
    assert [task["question"] for task in tasks] == ["what rhymes with moon 0?", "what rhymes with moon 1?"]
    assert tasks[0]["answer"] == "val"
    assert load_examples("rhymes", "rl", max_samples=1)[0]["ground_truth"] == "train"
    assert TrainConfig(run={"loggers": "diary,tensorboard"}).run.loggers == ["diary", "tensorboard"]
    with make_logger(["diary"], rhyming) as logger:
        logger.log({"loss": 1.0}, step=3)
    assert (rhyming / "diary.txt").read_text() == "3 ['loss']"
    settings = SamplerSettings(sampler="elsewhere")
    with pytest.raises(RuntimeError, match="asked for base"):
        make_sampler(settings, SimpleNamespace(model=None), base_name="base", prompts=[])


def test_a_plugin_s_loss_is_a_loss_and_a_variant_by_its_name(rhyming):
    assert GRPOSettings(policy_loss="plain").policy_loss == "plain"
    assert GRPOSettings(preset="plain").policy_loss == "plain"
    assert TrainConfig(algorithm="plain").loop.policy_loss == "plain"


def test_plugins_are_listed_with_their_distribution_and_version(rhyming):
    found = {(one["kind"], one["name"]): one for one in json.loads(listed("--json"))["plugins"]}
    parrot = found["agents", "parrot"]
    assert (parrot["distribution"], parrot["version"], parrot["error"]) == ("rhyming-things", "2.1", None)
    assert len(found) == len(POINTS)
    table = listed()
    assert "parrot" in table
    assert "ready" in table


def test_a_broken_plugin_is_listed_with_its_error_and_disturbs_no_other(rhyming):
    broken = {"agents": {"falls": "falling:Agent", "lost": "nowhere:Agent", "math": "rhyming:Parrot"}}
    write_distribution(rhyming, "broken-things", broken, {"falling": "raise ValueError('it fell')"})
    (rhyming / "torn-1.0.dist-info").mkdir()
    (rhyming / "torn-1.0.dist-info" / "entry_points.txt").write_text("[mini_agentic_rl.agents]\nno equals sign here")
    found = json.loads(listed("--json"))["plugins"]
    errors = {(one["kind"], one["name"]): one["error"] for one in found}
    assert errors["agents", "falls"] == "ValueError: it fell"
    assert "nowhere" in errors["agents", "lost"]
    assert "built in" in errors["agents", "math"]
    assert "cannot be read" in errors["", ""]
    assert errors["agents", "parrot"] is None
    assert load_recipe("parrot").agent is not None
    assert type(load_recipe("math").agent).__name__ == "MathAgent"
    with pytest.raises(UserError, match=r"agent: 'falls' of the plugin broken-things 1\.0 .* ValueError: it fell"):
        load_recipe("falls")


def test_a_name_that_two_distributions_offer_is_an_error_that_names_both(rhyming):
    write_distribution(rhyming, "other-things", {"agents": {"parrot": "rhyming:Parrot"}}, {})
    with pytest.raises(UserError, match="offered by other-things and rhyming-things: uninstall one"):
        load_recipe("parrot")
    assert load_reward("brevity") is not None
    assert "other-things and rhyming-things" in listed("--json")


def test_a_distribution_that_is_on_the_path_twice_counts_once(rhyming, tmp_path_factory, monkeypatch):
    second = tmp_path_factory.mktemp("second")
    write_distribution(second, "Rhyming.Things", POINTS, {"rhyming": MODULE}, version="1.0")
    monkeypatch.syspath_prepend(str(second))
    assert {plugin.version for plugin in installed_plugins()} == {"1.0"}
    assert load_plugin("agents", "parrot", setting="agent") is not None


def test_an_unknown_name_says_what_plugins_offer(rhyming):
    with pytest.raises(UserError, match=r"'parot' is unknown.*plugins offer parrot"):
        load_recipe("parot")
    with pytest.raises(UserError, match=r"unknown logger 'dairy'.*plugins offer diary"):
        make_logger(["dairy"], rhyming)
    assert plugin_names("environments") == []


@pytest.mark.parametrize(
    ("kind", "value", "use", "said"),
    [
        ("agents", "rhyming:brevity", lambda: load_recipe("wrong"), "not a LitAgent"),
        ("datasets", "rhyming:brevity", lambda: load_task_dataset("wrong"), "gives no rows"),
        ("losses", "rhyming:brevity", lambda: GRPOSettings(policy_loss="wrong"), "not a PolicyLoss"),
    ],
)
def test_a_plugin_that_is_something_else_is_told_in_one_line(rhyming, kind, value, use, said):
    write_distribution(rhyming, "wrong-things", {kind: {"wrong": value}}, {})
    with pytest.raises(UserError, match=said):
        use()
