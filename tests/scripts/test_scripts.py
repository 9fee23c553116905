"""The scripts run as a person runs them, on a tiny model."""

from __future__ import annotations

import io
import json
import runpy
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from mini_agentic_rl.cli import script as script_module
from mini_agentic_rl.cli.script import run_script
from mini_agentic_rl.policy import load_model
from mini_agentic_rl.rl import datasets
from warm import WarmProcess

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"


@pytest.fixture
def script(monkeypatch, capsys, tmp_path):
    """Run a script with some options; its exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "_in_cache", lambda: False)
    monkeypatch.setattr(datasets, "_hub_answers", lambda: False)

    def run(name, *options, typed=""):
        monkeypatch.setattr(sys, "argv", [name, *map(str, options)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(SCRIPTS / name), run_name="__main__")
        told = capsys.readouterr()
        return ended.value.code or 0, told.out, told.err

    return run


def worked(result):
    code, out, err = result
    assert code == 0, err
    return out


def test_from_imitation_over_reinforcement_to_a_conversation(script, tiny_folder, tmp_path):
    size = ("--max_samples", 6, "--batch_size", 3)
    sft = ("--model_path", tiny_folder, "--num_epochs", 1, "--lora_r", 2, "--output_dir", "out/sft")
    worked(script("train_sft.py", *sft, *size, "--gradient_accumulation_steps", 1))
    load_model("out/sft/epoch_1")

    rl = ("--samples_per_prompt", 2, "--max_new_tokens", 8, "--total_epochs", 2, "--output-dir", "out/rl")
    summary = json.loads(worked(script("train_gsm8k_agent.py", "--model_path=out/sft", *rl, *size, "--json")))
    assert summary["steps"] == 4
    assert [row["count"] for row in summary["accuracy"]] == [6, 6]
    epochs = sorted(path.name for path in Path("out/rl").glob("epoch_*"))
    assert epochs == ["epoch_1", "epoch_2"]

    talk = ("--model_path", "out/rl/epoch_2", "--max_new_tokens", 4, "--temperature", 0.5)
    out = worked(script("test_interactive.py", *talk, typed="Hello\n/quit\n"))
    assert out.strip()


def test_preferences_become_a_reward_model_that_scores(script, tiny_folder, tmp_path):
    raw = [{"question": f"Is {n} even?", "response_j": "yes" * (1 + n), "response_k": "no"} for n in range(12)]
    Path("raw.jsonl").write_text("".join(json.dumps(row) + "\n" for row in raw))
    worked(script("convert_dpo_format.py", "--input=raw.jsonl", "--output=converted.jsonl"))
    assert len(Path("converted.jsonl").read_text().splitlines()) == 12

    training = ("--dataset_name", "./converted.jsonl", "--model_name_or_path", tiny_folder, "--max_steps", 2)
    worked(script("reward_modeling.py", *training, "--per_device_train_batch_size", 4, "--output_dir", "reward"))

    with WarmProcess(SCRIPTS / "inference_api.py", "--model_path", "reward", "--port", "0") as process:
        address = process.wait_for_word("http://")
        body = json.dumps({"prompt": "Is 2 even?", "response": "yes"}).encode()
        request = Request(f"{address.rstrip('/')}/score", body, {"Content-Type": "application/json"})
        with urlopen(request, timeout=30) as answer:
            assert isinstance(json.load(answer)["score"], float)


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("train_sft.py", ["--modle_path", "x"], "--modle_path is unknown: did you mean --model_path?"),
        ("train_sft.py", ["--num-epoch=3"], "--num-epoch is unknown: did you mean --num_epochs?"),
        ("train_gsm8k_agent.py", ["--batchsize", "3"], "--batchsize is unknown: did you mean --batch_size?"),
        ("train_gsm8k_agent.py", ["--batch_size", "0"], "--batch_size 0: must be a whole number, 1 or more"),
        ("reward_modeling.py", ["--dataset_name"], "--dataset_name needs a value"),
        ("convert_dpo_format.py", ["--zzzzzz"], "--zzzzzz is unknown; --help shows those there are"),
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


def test_the_help_tells_how_flags_may_be_written(script):
    out = worked(script("inference_api.py", "--help"))
    assert "may be written with _ or -" in out
    assert "--model_path  is  --model" in out
    assert "Usage: mini-agentic-rl score-server" in out


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.py")), ids=lambda path: path.stem)
def test_the_flags_of_a_script_are_options_of_its_command(path, monkeypatch):
    calls = []
    monkeypatch.setattr(script_module, "run_script", lambda command, **how: calls.append((command, how)))
    runpy.run_path(str(path), run_name="__main__")
    ((command, how),) = calls
    known = set(script_module._options(command))
    assert set(how.get("names", {}).values()) | set(how.get("defaults", {})) <= known
    assert not known & set(how.get("own", ()))


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
