"""Options are the fields of a settings class; `--config` reads them from a file, and `--print-config` writes one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest
import typer
from pydantic import Field, model_validator
from typer.testing import CliRunner

from command_line import invoke
from mini_agentic_rl.commands.config_file import as_yaml
from mini_agentic_rl.commands.options import read_settings, settings_command
from mini_agentic_rl.commands.train_config import TrainConfig
from mini_agentic_rl.config import Settings
from mini_agentic_rl.errors import UserError


class Example(Settings):
    """An example."""

    steps: int = Field(default=3, ge=1, json_schema_extra={"panel": "Learning"})
    """How many
    steps."""
    kind: Literal["plain", "fancy"] = "plain"
    """Which kind."""
    folder: Path | None = None
    """Where to."""
    names: list[Literal["a", "b"]] = Field(default_factory=lambda: ["a"])
    """Some names."""
    quick: bool = False
    """Be quick."""
    tools: bool = True
    """Use tools."""
    fresh: bool | None = None
    """Start afresh, or not; otherwise as the kind says."""
    json_output: bool = Field(default=False, json_schema_extra={"option": "--json"})
    """Print JSON."""

    @model_validator(mode="after")
    def _steps_of_fancy(self) -> Example:
        if self.kind == "fancy" and self.steps > 9:
            raise ValueError("--kind fancy takes at most --steps 9")
        return self


def _invoke(*arguments: str, error: BaseException | None = None):
    program = typer.Typer(pretty_exceptions_enable=False)
    seen: list[Example] = []

    @settings_command(program, "go", Example)
    def go(settings: Example) -> None:
        """Go somewhere."""
        if error is not None:
            raise error
        seen.append(settings)

    program.command()(lambda: None)  # a single command would need no name
    result = CliRunner().invoke(program, ["go", *arguments], env={"COLUMNS": "200", "TERM": "dumb"})
    return result, seen


class WarmUp(Settings):
    examples: int = 8
    """How many."""
    batch: int = 4
    """How many at once."""
    until: Literal["ready", "examples"] = "ready"
    """The end: `ready`, or after all (`examples`) of `batch=9`."""


def test_help_names_settings_as_options_and_values_as_they_are_given():
    app = typer.Typer()

    @settings_command(app, "warm-up", WarmUp)
    def warm_up(settings: WarmUp) -> None:
        """Imitate."""

    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    assert "`ready`, or after all (`examples`) of `--batch 9`." in shown


def test_every_field_can_be_given_and_the_settings_know_which_were():
    _, (settings,) = _invoke("--steps", "3", "--no-fresh", "--names", "a")
    assert settings == Example(fresh=False)
    assert settings.model_fields_set == {"steps", "fresh", "names"}
    arguments = "--steps 5 --kind fancy --folder x/y --names a --names b --quick --no-tools --json"
    _, (settings,) = _invoke(*arguments.split())
    assert settings == Example(
        steps=5, kind="fancy", folder=Path("x/y"), names=["a", "b"], quick=True, tools=False, json_output=True
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--steps 0", "error: --steps 0: input should be greater than or equal to 1\n"),
        ("--kind odd", "error: --kind odd: input should be 'plain' or 'fancy'\n"),
        ("--names c", "error: --names c: input should be 'a' or 'b'\n"),
        ("--kind fancy --steps 10", "error: --kind fancy takes at most --steps 9\n"),
    ],
)
def test_a_value_against_the_rules_is_one_line_that_names_the_option(arguments, message):
    result, seen = _invoke(*arguments.split())
    assert (result.exit_code, result.stderr, result.stdout, seen) == (2, message, "", [])


def test_a_user_error_is_one_line_and_other_errors_keep_their_traceback():
    result, _ = _invoke(error=UserError("--model x: there is\nno such model"))
    assert result.exit_code == 2
    assert result.stderr == "error: --model x: there is no such model\n"
    assert isinstance(_invoke("--debug", error=UserError("no such model"))[0].exception, UserError)
    name = "a" * 300
    with pytest.raises(OSError, match="too long") as too_long:
        Path(name).is_dir()
    result, _ = _invoke(error=too_long.value)
    assert (result.exit_code, result.stderr.count("\n"), name in result.stderr) == (2, 1, True)
    assert isinstance(_invoke(error=ZeroDivisionError("ours"))[0].exception, ZeroDivisionError)
    result, _ = _invoke(error=KeyboardInterrupt())
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")


YAML = "total_steps: 3\nlearner:\n  weight_decay: 0.1\n  learning_rate: 1e-4\nclip_ratio: null\n"
TOML = "total_steps = 3\n[learner]\nweight_decay = 0.1\nlearning_rate = 1e-4\n"
JSON = json.dumps({"total_steps": 3, "learner": {"weight_decay": 0.1, "learning_rate": 1e-4}})


def _file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize(("name", "text"), [("a.yaml", YAML), ("a.toml", TOML), ("a.json", JSON)])
def test_a_file_sets_by_name_and_in_groups_and_options_win(name, text, mark, tmp_path):
    config = read_settings(TrainConfig, {"total_steps": 5}, _file(tmp_path, name, mark + text))
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
    result = invoke("train", "--config", path, *options, "--print-config")
    assert result.exit_code == 0
    assert "# Model\n" in result.stdout
    lines = result.stdout.splitlines()
    for line in ("lora_r: 4", "total_steps: 2", "kl_coef: 0.5", "difficulty: [1, 3]", "patience: 3"):
        assert line in lines
    assert 'loggers: ["console", "tensorboard"]' in lines


def test_the_printed_settings_of_eval_are_those_that_it_uses(tmp_path):
    file = _file(tmp_path, "tasks.jsonl", '{"question": "1 + 1?", "answer": "2"}')
    for words, agent, dataset in ((["--agent", "guess"], "guess", "guess"), (["--dataset", file], "math", file)):
        printed = invoke("eval", *words, "--print-config").stdout
        assert {f'agent: "{agent}"', f"dataset: {json.dumps(str(dataset))}"} <= set(printed.splitlines())


def test_a_setting_without_an_option_is_refused_on_the_command_line():
    for words, name in ((["--patience", "3"], "patience"), (["--no-normalize-advantage"], "normalize_advantage")):
        refused = invoke("train", *words)
        assert refused.exit_code == 2
        assert f"give {name} in a file of --config" in refused.output


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("num_generations: 4", "run.yaml: num_generations is unknown: here it is samples_per_prompt"),
        ("total_stepz: 3", "run.yaml: total_stepz is unknown: did you mean total_steps?"),
        ("total_steps: -1", "run.yaml: total_steps -1: input should be greater than or equal to 0"),
        ("learner: {momentum: 1}", "run.yaml: learner.momentum is unknown"),
        ("loop: {total_stepz: 1}", "run.yaml: loop.total_stepz is unknown: did you mean total_steps?"),
        ("total_steps: 1\nloop:\n", "run.yaml: loop holds no settings by name"),
        ("lora: [r]", "run.yaml: lora holds no settings by name"),
        ("- 3", "run.yaml holds no settings by name"),
        ("a: b: c", "run.yaml: this is no YAML"),
        (r'model: "C:\Users\me"', "between double quotes write / for"),
    ],
)
def test_what_a_file_gets_wrong_is_one_line_that_names_it(text, complaint, tmp_path):
    path = _file(tmp_path, "run.yaml", text)
    result = invoke("train", "--config", path)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("run.toml", rb'model = "C:\Users\me"', "between double quotes write / for"),
        ("run.json", rb'{"model": "C:\my\model"}', "between double quotes write / for"),
        ("run.yaml", "model: embedded".encode("utf-16"), "save it as UTF-8"),
    ],
)
def test_a_path_or_an_encoding_of_windows_is_explained(name, content, complaint, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=complaint):
        read_settings(TrainConfig, {}, tmp_path / name)


def test_a_file_that_is_missing_or_of_no_known_kind(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read_settings(TrainConfig, {}, tmp_path / "none.yaml")
    with pytest.raises(UserError, match=r"\.yaml, \.toml and \.json"):
        read_settings(TrainConfig, {}, _file(tmp_path, "run.ini", ""))


class WithKey(Settings):
    """Settings with a key."""

    api_key: str | None = Field(default=None, repr=False)
    """A key."""


def test_an_error_does_not_show_a_key_that_a_settings_file_gives_as_a_number(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("api_key: 12345678901\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"api_key .*string") as raised:
        read_settings(WithKey, {}, file)
    assert "12345678901" not in str(raised.value)
