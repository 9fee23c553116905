"""What a command takes where a person has said nothing: the same for an agent, whichever command it is."""

from __future__ import annotations

import json

import pytest
import yaml
from typer.testing import CliRunner

from mini_agentic_rl.cli import app
from mini_agentic_rl.commands.train_config import TrainConfig, with_agent_defaults
from mini_agentic_rl.recipes.sql.job import SqlTrainConfig, _components


def test_the_sql_agent_has_the_defaults_of_its_own_command():
    assert with_agent_defaults(TrainConfig(agent="sql")) == SqlTrainConfig()
    given = with_agent_defaults(TrainConfig(agent="sql", difficulty=[1, 2], sft_examples=32))
    assert given == SqlTrainConfig(difficulty=[1, 2], sft_examples=32)
    math = TrainConfig(difficulty=[3])
    assert with_agent_defaults(math) == math


@pytest.mark.parametrize("role", ["algorithm", "runner"])
def test_the_side_of_a_training_alone_meets_the_other_at_a_store_server(role, monkeypatch):
    monkeypatch.setenv("AGL_MANAGED_STORE", "0")
    assert _components(SqlTrainConfig())["strategy"] == "shm"
    monkeypatch.setenv("AGL_CURRENT_ROLE", role)
    assert _components(SqlTrainConfig()) == {}


def test_a_file_is_measured_as_a_whole(tiny_folder, tmp_path):
    file = tmp_path / "tasks.csv"
    file.write_text("question,answer\n" + "".join(f"What is {n} + 1?,{n + 1}\n" for n in range(6)))
    arguments = ["eval", "--model", tiny_folder, "--dataset", str(file), "--max-new-tokens", "4", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["accuracy"][0]["count"] == 6


def _printed(*arguments):
    result = CliRunner().invoke(app, ["train", *arguments, "--print-config"])
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize(
    "arguments", [["--agent", "guess", "--lora-r", "4"], ["--agent", "sql"], ["--difficulty", "3,4"]]
)
def test_what_is_printed_is_what_would_be_trained_with(arguments, tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text(_printed(*arguments))
    assert _printed("--config", str(file)) == file.read_text()
    options = [word.removeprefix("--").replace("-", "_") for word in arguments]
    trained = with_agent_defaults(TrainConfig(**dict(zip(options[::2], options[1::2], strict=True)))).flat()
    shown = yaml.safe_load(file.read_text())
    assert {name: trained[name] for name in shown} == shown


def test_each_recipe_has_its_own_defaults():
    math, guess, sql = (yaml.safe_load(_printed("--agent", agent)) for agent in ("math", "guess", "sql"))
    assert [one["sft_examples"] for one in (math, guess, sql)] == [2048, 96, 192]
    assert [one["max_batch_tokens"] for one in (math, guess)] != [sql["max_batch_tokens"]] * 2
    assert guess["output_dir"] == "outputs/guess-agent"


def test_families_that_call_tools_go_on_imitating_beside_their_rewards_where_that_can_be():
    calls_tools = ["--agent", "retrieval"]
    assert yaml.safe_load(_printed(*calls_tools))["sft_coef"] > 0
    assert yaml.safe_load(_printed())["sft_coef"] == 0  # its demonstrations show wrong operations too
    for refused in (["--sft-examples", "0"], ["--backend", "trl"], ["--sft-coef", "0"]):
        assert yaml.safe_load(_printed(*calls_tools, *refused))["sft_coef"] == 0
    assert yaml.safe_load(_printed("--dataset", "reasoning_gym:countdown"))["sft_coef"] == 0
    assert not yaml.safe_load(_printed(*calls_tools, "--algorithm", "ppo"))["sft_coef"]
