"""Ctrl-C: the run stops cleanly with a checkpoint, and `--resume` finishes it."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
import torch
from safetensors.torch import load_file

from command_line import invoke
from mini_agentic_rl.algorithm import measure
from mini_agentic_rl.algorithm.grpo import GRPOObjective
from mini_agentic_rl.commands import train
from mini_agentic_rl.commands.train_config import TrainConfig
from mini_agentic_rl.metrics import MetricsLogger, read_metrics
from mini_agentic_rl.policy import LoraSettings, load_model, save_weights
from mini_agentic_rl.trainer import run as trainer_run
from processes import PythonProcess


def _settings(model, folder, **changes):
    values = {"sft_examples": 0, "total_steps": 3, "checkpoint_every": 100, "eval_size": 1, "transfer_size": 0}
    values |= {"tasks_per_step": 1, "samples_per_prompt": 2, "max_new_tokens": 4, "n_runners": 2, "console": False}
    return TrainConfig(model=model, output_dir=folder, **values | changes)


def _checkpoints(folder):
    return {
        path.name: json.loads((path / "state.json").read_text())["step"] for path in (folder / "checkpoints").iterdir()
    }


def test_a_terminated_command_leaves_a_checkpoint_and_is_resumed(tiny_folder, tmp_path, monkeypatch):
    folder, steps, update, updates = tmp_path / "run", 5, GRPOObjective.update, []
    options = [
        *("--model", tiny_folder, "--output-dir", str(folder), "--eval-size", "1", "--sft-examples", "0"),
        *("--total-steps", str(steps), "--tasks-per-step", "1", "--samples-per-prompt", "2", "--n-runners", "4"),
        *("--max-new-tokens", "8", "--checkpoint-every", "100", "--max-staleness", "2", "--max-samples", "40"),
    ]

    def terminated_update(*arguments):
        updates.append(1)
        if len(updates) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return update(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(GRPOObjective, "update", terminated_update)
        terminated = invoke("train", *options)
    assert (terminated.exit_code, terminated.stdout) == (143, ""), terminated.stderr
    assert "terminated; the same command with --resume continues this run" in terminated.stderr
    newest = max(_checkpoints(folder).values())
    assert 2 <= newest < steps

    resumed = invoke("train", *options, "--resume", "--json")
    assert f"resumed after step {newest}" in resumed.stderr
    assert json.loads(resumed.stdout)["steps"] == steps
    rows = read_metrics(folder / "metrics.jsonl")
    learned = [row["step"] for row in rows if "seconds/sampling" in row]  # the interrupted step has no row
    assert learned == sorted(set(learned))
    assert (learned[0], learned[-1]) == (1, steps)
    assert {row["step"] for row in rows if "accuracy" in row} == {0, steps}


def test_a_server_that_still_loads_its_model_is_ended_at_once(tiny_folder, tmp_path):
    save_weights(load_model(tiny_folder, lora=LoraSettings(r=2), device="cpu"), tmp_path)
    weights = tmp_path / "adapter_model.safetensors"
    weights.unlink()
    os.mkfifo(weights)  # the disk never answers
    options = ["--adapter", str(tmp_path), "--model", tiny_folder]
    with PythonProcess("mini_agentic_rl", "serve", *options) as process, open(weights, "wb"):  # once it reads
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) in (143, -signal.SIGTERM), process.stderr


def test_an_interruption_during_an_update_counts_that_update(tiny_folder, tmp_path, monkeypatch):
    updates = []

    def interrupted_update(*_):
        updates.append(1)
        if len(updates) == 2:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)  # the event loop hears of it while the weights are still the old ones
        return {}  # what is learned does not matter here

    monkeypatch.setattr(GRPOObjective, "update", interrupted_update)
    settings = _settings(tiny_folder, tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        train.train_job(settings)
    assert _checkpoints(tmp_path / "run") == {"step_0": 0, "step_2": 2}
    assert len(updates) == 2
    train.train_job(settings.changed(resume=True))
    assert len(updates) == 3


def test_an_interrupted_warm_up_goes_on_where_it_stood(tiny_folder, tmp_path, monkeypatch):
    class Interrupts(MetricsLogger):
        """Presses Ctrl-C at the second step of the warm-up."""

        phase_name = ""

        def phase(self, name, total=None):
            self.phase_name = name

        def log(self, metrics, *, step):
            if self.phase_name == "SFT" and step == 2:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.1)

    warm_up = {"sft_examples": 16, "sft_batch_size": 2, "sft_until": "examples"}
    settings = _settings(tiny_folder, tmp_path / "run", **warm_up, total_steps=0)
    with monkeypatch.context() as patch:
        patch.setattr(trainer_run, "make_logger", lambda *_, **__: Interrupts())
        with pytest.raises(KeyboardInterrupt):
            train.train_job(settings)
    state = json.loads((tmp_path / "run" / "checkpoints" / "step_0" / "state.json").read_text())
    imitated = state["imitated"]["default"]
    assert 2 <= imitated < 8  # a loaded machine ends more steps before it looks at the signal
    assert not state["warmed_up"]
    summary = train.train_job(settings.changed(resume=True))
    assert [row["name"] for row in summary["accuracy"]] == ["before", "after SFT"]
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert next(row["step"] for row in rows if row["phase"] == "SFT") == imitated + 1  # the other logger kept nothing
    train.train_job(settings.changed(output_dir=tmp_path / "unbroken"))
    weights = [load_file(tmp_path / name / "adapter" / "adapter_model.safetensors") for name in ("run", "unbroken")]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_an_interrupted_last_measurement_is_made_again_and_no_step_is_trained_twice(tiny_folder, tmp_path, monkeypatch):
    evaluate, updates, update = measure.evaluate, [], GRPOObjective.update

    async def broken(*arguments, **options):
        if options["name"] == "after RL":
            raise RuntimeError("the lights went out")
        return await evaluate(*arguments, **options)

    monkeypatch.setattr(GRPOObjective, "update", lambda *arguments: updates.append(1) or update(*arguments))
    settings = _settings(tiny_folder, tmp_path / "run", total_steps=1)
    with monkeypatch.context() as patch:
        patch.setattr(measure, "evaluate", broken)
        with pytest.raises(RuntimeError, match="the lights went out"):
            train.train_job(settings)
    assert _checkpoints(tmp_path / "run") == {"step_0": 0, "step_1": 1}
    summary = train.train_job(settings.changed(resume=True))
    assert [row["name"] for row in summary["accuracy"]] == ["before", "after RL"]
    assert len(updates) == 1
