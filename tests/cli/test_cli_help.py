"""Help pages: what is asked for most comes first, and a command with many options shows a few of them."""

from __future__ import annotations

from typer.main import get_command
from typer.testing import CliRunner

from mini_agentic_rl.cli import app
from mini_agentic_rl.commands.evaluate import EVAL_SHORT_HELP
from mini_agentic_rl.commands.serve import SERVE_SHORT_HELP
from mini_agentic_rl.commands.train_config import TRAIN_SHORT_HELP
from mini_agentic_rl.integrations.tinker.command import _SHORT_HELP as TINKER_SHORT_HELP


def _page(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == 0, result.output
    return result.stdout


def _commands(command, name=""):
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, [parameter for parameter in command.params if parameter.param_type_name == "option"]
        return
    for part, one in inner.items():
        yield from _commands(one, f"{name} {part}".strip())


def test_a_setting_without_an_option_is_set_in_a_file(tmp_path):
    (tmp_path / "train.yaml").write_text("patience: 3")
    assert "patience: 3" in _page("train", "--config", str(tmp_path / "train.yaml"), "--print-config")
    refused = CliRunner().invoke(app, ["train", "--patience", "3"], env={"COLUMNS": "200"})
    assert refused.exit_code == 2
    assert "give patience in a file of --config" in refused.output


def test_what_a_short_help_names_is_an_option_of_its_command():
    shown = {
        "train": TRAIN_SHORT_HELP,
        "eval": EVAL_SHORT_HELP,
        "serve": SERVE_SHORT_HELP,
        "tinker": TINKER_SHORT_HELP,
    }
    commands = dict(_commands(get_command(app)))
    for command, names in shown.items():
        assert set(names) <= {option.name for option in commands[command]}, command


def test_an_option_that_the_short_help_leaves_out_can_be_given():
    page = _page(
        "train", "--kl-coef", "0.5", "--difficulty", "1,3", "--loggers", "console,tensorboard", "--print-config"
    )
    assert "kl_coef: 0.5" in page
    assert "difficulty: [1, 3]" in page
    assert 'loggers: ["console", "tensorboard"]' in page
