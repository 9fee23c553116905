"""Settings from a file: `--config`, and `--print-config`, which writes one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mini_agentic_rl.cli import app
from mini_agentic_rl.commands.config_file import as_yaml
from mini_agentic_rl.commands.options import read_settings
from mini_agentic_rl.commands.train_config import TrainConfig
from mini_agentic_rl.errors import UserError

YAML = "total_steps: 3\nlearner:\n  weight_decay: 0.1\n  learning_rate: 1e-4\nclip_ratio: null\n"
TOML = "total_steps = 3\n[learner]\nweight_decay = 0.1\nlearning_rate = 1e-4\n"
JSON = json.dumps({"total_steps": 3, "learner": {"weight_decay": 0.1, "learning_rate": 1e-4}})


def _file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(("name", "text"), [("a.yaml", YAML), ("a.toml", TOML), ("a.json", JSON)])
def test_a_file_sets_by_name_and_in_groups_and_options_win(name, text, tmp_path):
    config = read_settings(TrainConfig, {"total_steps": 5}, _file(tmp_path, name, text))
    assert (config.loop.total_steps, config.learner.learning_rate, config.learner.weight_decay) == (5, 1e-4, 0.1)
    assert config.model_fields_set == {"loop", "learner"}
    assert config.loop.model_fields_set == {"total_steps"}
    assert config.loop.clip_ratio == 0.2


def test_what_a_run_folder_keeps_and_what_is_printed_are_such_files(tmp_path):
    config = TrainConfig(algorithm="ppo", gamma=0.9, difficulty=[3], learner={"weight_decay": 0.1})
    kept = _file(tmp_path, "config.json", json.dumps(config.flat()))
    assert read_settings(TrainConfig, {}, kept) == config
    assert read_settings(TrainConfig, {}, _file(tmp_path, "printed.yaml", as_yaml(config))) == config


def test_a_command_prints_its_settings_and_does_nothing_else(tmp_path):
    path = _file(tmp_path, "run.yaml", "lora_r: 4\npatience: 3\n")
    options = ["--total-steps", "2", "--kl-coef", "0.5", "--difficulty", "1,3", "--loggers", "console,tensorboard"]
    result = CliRunner().invoke(app, ["train", "--config", str(path), *options, "--print-config"])
    assert result.exit_code == 0
    assert "# Model\n" in result.stdout
    lines = result.stdout.splitlines()
    for line in ("lora_r: 4", "total_steps: 2", "kl_coef: 0.5", "difficulty: [1, 3]", "patience: 3"):
        assert line in lines
    assert 'loggers: ["console", "tensorboard"]' in lines


def test_a_setting_without_an_option_is_refused_on_the_command_line():
    refused = CliRunner().invoke(app, ["train", "--patience", "3"], env={"COLUMNS": "200"})
    assert refused.exit_code == 2
    assert "give patience in a file of --config" in refused.output


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("total_stepz: 3", "run.yaml: total_stepz is unknown: did you mean total_steps?"),
        ("total_steps: -1", "run.yaml: total_steps -1: input should be greater than or equal to 0"),
        ("learner: {momentum: 1}", "run.yaml: learner.momentum is unknown"),
        ("loop: {total_stepz: 1}", "run.yaml: loop.total_stepz is unknown: did you mean total_steps?"),
        ("- 3", "run.yaml holds no settings by name"),
        ("a: b: c", "run.yaml: this is no YAML"),
    ],
)
def test_what_a_file_gets_wrong_is_one_line_that_names_it(text, complaint, tmp_path):
    path = _file(tmp_path, "run.yaml", text)
    result = CliRunner().invoke(app, ["train", "--config", str(path)])
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_file_that_is_missing_or_of_no_known_kind(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read_settings(TrainConfig, {}, tmp_path / "none.yaml")
    with pytest.raises(UserError, match=r"\.yaml, \.toml and \.json"):
        read_settings(TrainConfig, {}, _file(tmp_path, "run.ini", ""))
