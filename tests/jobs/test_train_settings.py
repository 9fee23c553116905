"""Settings of `train`: the defaults of each agent, and the algorithm that they make."""

from __future__ import annotations

import pytest
import yaml

from command_line import invoke
from mini_agentic_rl.algorithm import MiniPPO
from mini_agentic_rl.commands.options import read_settings
from mini_agentic_rl.commands.train import make_algorithm
from mini_agentic_rl.commands.train_config import TrainConfig, with_agent_defaults
from mini_agentic_rl.errors import UserError
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


def _printed(*arguments):
    result = invoke("train", *arguments, "--print-config")
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("given", [{"agent": "guess", "lora_r": "4"}, {"agent": "sql"}, {"difficulty": "3,4"}])
def test_the_printed_settings_are_those_of_the_training(given, tmp_path):
    options = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
    file = tmp_path / "settings.yaml"
    file.write_text(_printed(*options))
    assert _printed("--config", str(file)) == file.read_text()
    trained = _settings(**given)
    shown = yaml.safe_load(file.read_text())
    assert {name: trained[name] for name in shown} == shown


@pytest.mark.parametrize(("agent", "tokens"), [("units", 48), ("sql", 96)])
def test_the_printed_settings_show_what_an_agent_chooses_and_leave_it_open(agent, tokens):
    assert f"max_new_tokens: null  # here {tokens}: " in _printed("--agent", agent)
    assert "max_new_tokens: 7  # the default" in _printed("--agent", agent, "--max-new-tokens", "7")


def _settings(**given):
    return with_agent_defaults(TrainConfig(**given)).flat()


def test_each_recipe_has_its_own_defaults():
    math, guess, sql = (_settings(agent=agent) for agent in ("math", "guess", "sql"))
    assert [settings["sft_examples"] for settings in (math, guess, sql)] == [2048, 96, 192]
    assert [settings["max_batch_tokens"] for settings in (math, guess)] != [sql["max_batch_tokens"]] * 2
    assert guess["output_dir"] == "outputs/guess-agent"


def test_only_the_main_job_has_the_folder_of_the_main_job():
    main = _settings()["output_dir"]
    assert _settings(agent="units", dataset="units", seed=1)["output_dir"] == main
    assert _settings(agent="my_agent:judge", dataset="own.jsonl")["output_dir"] == "outputs/my_agent-judge-agent"
    assert _settings(agent="math", dataset="arithmetic")["output_dir"] == "outputs/arithmetic-agent"


def test_families_with_tools_mix_imitation_into_their_steps_where_that_is_possible():
    assert _settings(agent="retrieval")["sft_coef"] > 0
    assert _settings()["sft_coef"] == 0  # its demonstrations show wrong operations too
    for without in ({"sft_examples": 0}, {"backend": "trl"}, {"sft_coef": 0}, {"algorithm": "ppo"}):
        assert not _settings(agent="retrieval", **without)["sft_coef"]
    assert _settings(dataset="reasoning_gym:countdown")["sft_coef"] == 0


def test_ppo_takes_its_options_and_shares_the_others():
    options = {"gae_lambda": 0.9, "value_clip": 0.3, "value_trains_adapter": True, "kl_coef": 0.01}
    made = make_algorithm(TrainConfig(algorithm="ppo", samples_per_prompt=1, total_steps=7, **options))
    assert isinstance(made, MiniPPO)
    assert (made.settings.gae_lambda, made.settings.value_clip, made.settings.total_steps) == (0.9, 0.3, 7)
    assert made.settings.value_trains_adapter
    assert made.settings.kl_in_reward
    assert made.settings.loss_aggregation == "token"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"value_clip": 0.3}, "`value_clip` is PPO's: give --algorithm ppo with it"),
        ({"algorithm": "ppo", "baseline": "group"}, "--baseline group compares rollouts"),
        ({"samples_per_prompt": 1}, "--samples-per-prompt 1 leaves nothing to compare"),
        ({"algorithm": "rloo", "backend": "trl"}, "baseline='leave_one_out'"),
        ({"algorithm": "ppo", "backend": "trl"}, "backend: 'trl' is MiniGRPO's"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_in_one_line(options, complaint):
    with pytest.raises(UserError, match=complaint):
        make_algorithm(read_settings(TrainConfig, options))
