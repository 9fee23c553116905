"""The scripts: what they refuse, and how flags become options. `tests/pages` runs them as their page does."""

from __future__ import annotations

import io
import runpy
import sys
from pathlib import Path

import pytest

from mini_agentic_rl.integrations.hello_agents import datasets
from mini_agentic_rl.integrations.hello_agents import script as script_module
from mini_agentic_rl.integrations.hello_agents.script import run_script

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"


@pytest.fixture
def script(monkeypatch, capsys, tmp_path):
    """Run a script with some options; its exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "cached", lambda *_: False)
    monkeypatch.setattr(datasets, "ask_hub", lambda: False)

    def run(name, *options, typed=""):
        monkeypatch.setattr(sys, "argv", [name, *map(str, options)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(SCRIPTS / name), run_name="__main__")
        return ended.value.code or 0, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("train_sft.py", ["--modle_path", "x"], "--modle_path is unknown: did you mean --model_path?"),
        ("train_gsm8k_agent.py", ["--batch_size", "0"], "--batch_size 0: must be a whole number, 1 or more"),
        ("reward_modeling.py", ["--dataset_name"], "--dataset_name needs a value"),
        ("convert_dpo_format.py", ["--zzzzzz"], "--zzzzzz is unknown; see --help"),
    ],
)
def test_a_flag_that_nobody_knows_is_refused_with_the_nearest(script, name, options, told):
    code, out, err = script(name, *options)
    assert (code, out) == (2, "")
    assert err == f"error: {told}\n"


def test_gsm8k_that_cannot_be_had_says_what_to_give_instead(script, tiny_folder, monkeypatch):
    def no_network(*_, **__):
        raise ConnectionError("Couldn't reach 'openai/gsm8k' on the Hub")

    monkeypatch.setattr("datasets.load_dataset", no_network)
    for name in ("train_sft.py", "train_gsm8k_agent.py"):
        code, _, err = script(name, "--model_path", tiny_folder, "--dataset", "gsm8k", "--output_dir", "out")
        assert code == 2
        assert "give" in err.splitlines()[-1]
        assert "gsm8k" in err.splitlines()[-1]


def test_the_help_names_the_flags_and_defaults_of_the_script_and_asks_no_hub(script, monkeypatch):
    def ask(*_):
        raise AssertionError("the hub is asked")

    monkeypatch.setattr(datasets, "cached", ask)
    monkeypatch.setattr(datasets, "ask_hub", ask)
    code, out, err = script("train_gsm8k_agent.py", "--help")
    assert code == 0, err
    for line in ("--model_path  the same as --model", "--sft-examples  default: 0", "--dataset  default: gsm8k where"):
        assert line in out
    assert "--batch_size" in out
    assert "--tasks-per-step" in out


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.py")), ids=lambda path: path.stem)
def test_the_flags_of_a_script_are_options_of_its_command(path, monkeypatch):
    calls = []
    monkeypatch.setattr(script_module, "run_script", lambda command, **how: calls.append((command, how)))
    runpy.run_path(str(path), run_name="__main__")
    ((command, how),) = calls
    known = set(script_module._options(command))
    assert set(how.get("names", {}).values()) | set(how.get("defaults", {})) | set(how.get("found", {})) <= known
    assert not known & set(how.get("own", {}))


def test_flags_of_the_command_line_reach_the_command_unchanged(monkeypatch):
    lines = []
    monkeypatch.setattr("typer.core.TyperGroup.main", lambda self, arguments, **_: lines.append(arguments))
    given = ["--model_path", "a_b", "--no-tools", "--max_new_tokens=7", "--temperature", "-1"]
    with pytest.raises(SystemExit) as ended:
        run_script("chat", names={"model_path": "model"}, defaults={"max_turns": "2", "dtype": "float32"},
                   arguments=[*given, "--max-turns", "3"])  # fmt: skip
    assert ended.value.code == 0
    expected = ["chat", "--model", "a_b", "--no-tools", "--max-new-tokens", "7", "--temperature", "-1"]
    assert lines == [[*expected, "--max-turns", "3", "--dtype", "float32"]]
