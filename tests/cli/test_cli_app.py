"""The installed commands: what they say, how quickly, and how they hand settings to the jobs."""

from __future__ import annotations

import subprocess
import sys
from unittest.mock import Mock

import pytest

from command_line import invoke
from mini_agentic_rl import __version__
from mini_agentic_rl.commands.train_config import TrainConfig
from mini_agentic_rl.trainer import RunFolder, what_next
from mini_agentic_rl.trainer.statistics import accuracy_row

SUMMARY = {"accuracy": [accuracy_row("before", 10, 200), accuracy_row("after RL", 150, 200)]}


def test_train_hands_its_settings_to_the_job_and_shows_the_accuracies(monkeypatch, tmp_path):
    job = Mock(return_value=SUMMARY)
    monkeypatch.setattr("mini_agentic_rl.commands.train.train_job", job)
    (tmp_path / "adapter").mkdir()
    result = invoke("train", "--output-dir", str(tmp_path), "--samples-per-prompt", "4", "--model", "some/model")
    assert result.exit_code == 0, result.output
    job.assert_called_once_with(TrainConfig(output_dir=tmp_path, samples_per_prompt=4, model="some/model").completed())
    assert "75.0 %" in result.stdout
    assert f"wrote {tmp_path / 'adapter'}" in result.stdout
    assert f"wrote {tmp_path / 'report.html'}" not in result.stdout
    assert result.stdout.splitlines()[-3:] == what_next(RunFolder(tmp_path))


def test_version_and_models(monkeypatch, tmp_path):
    lines = invoke("version").stdout.splitlines()
    assert lines[0] == f"mini-agentic-rl {__version__}"
    assert [line.split()[0] for line in lines[1:]] == ["python", "torch", "transformers", "peft"]
    monkeypatch.setenv("MINI_AGENTIC_RL_CACHE", str(tmp_path))
    assert "mini-agentic-rl models pull" in invoke("models", "list").stdout


def test_help_needs_no_torch_and_little_time():
    program = (
        "import sys, time; start = time.process_time()\n"
        "from typer.testing import CliRunner\n"
        "from mini_agentic_rl.cli import app\n"
        "assert CliRunner().invoke(app, ['train', '--help']).exit_code == 0\n"
        "print(time.process_time() - start, *[n for n in ('torch', 'transformers', 'openai') if n in sys.modules])"
    )
    for _ in range(3):  # neighbours make a try slow, not all of them
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        seconds, *loaded = run.stdout.split()
        assert loaded == []
        if float(seconds) < 2.0:  # half of it with nothing else running
            return
    pytest.fail(f"help took {seconds} s of processor time")
