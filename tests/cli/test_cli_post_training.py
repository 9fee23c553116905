"""Each command of post-training, from its options to the model that the next command takes."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from mini_agentic_rl.cli import app

SMALL = (
    *("--dataset", "arithmetic", "--max-samples", "6", "--num-epochs", "1", "--batch-size", "4"),
    *("--device", "cpu", "--dtype", "float32", "--max-length", "900"),
)


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_a_command_trains_and_prints_nothing_but_json(tiny_folder, tmp_path):
    out = tmp_path / "reward"
    code, printed, logged = run("reward", "--model", tiny_folder, *SMALL, "--output-dir", out, "--json")
    assert code == 0, logged
    summary = json.loads(printed)
    assert summary["method"] == "reward"
    assert summary["examples"]["train"] + summary["examples"]["held_out"] == 6
    assert (out / "adapter_config.json").is_file()
    assert (out / "epoch_1" / "adapter_config.json").is_file()
    assert "training" in logged


def test_stages_follow_each_other_by_their_folders(tiny_folder, tmp_path):
    sft, dpo = tmp_path / "sft", tmp_path / "dpo"
    assert run("sft", "--model", tiny_folder, *SMALL, "--output-dir", sft)[0] == 0
    code, shown, told = run("dpo", "--model", sft, *SMALL, "--output-dir", dpo)
    assert code == 0, told
    assert shown.splitlines()[-3:] == [
        f"wrote {dpo}",
        f"to use what was trained: mini-agentic-rl chat --model {dpo}",
        f"to reinforce it:         mini-agentic-rl train --model {dpo} --sft-examples 0 --output-dir outputs/rl",
    ]
    code, printed, told = run(
        *("eval", "--model", dpo, "--size", "2", "--max-new-tokens", "4", "--device", "cpu", "--json")
    )
    assert code == 0, told
    assert json.loads(printed)["accuracy"][0]["count"] == 2


def test_a_wrong_setting_is_one_line(tiny_folder, tmp_path):
    code, printed, told = run("kto", "--model", tiny_folder, "--batch-size", "1", "--output-dir", tmp_path / "run")
    assert (code, printed) == (2, "")
    assert told.startswith("error: --batch-size 1:")
