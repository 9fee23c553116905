"""Supervised fine-tuning: it learns, keeps to its folder, goes on after a kill, and leaves what `--model` loads."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from mini_agentic_rl.errors import UserError
from mini_agentic_rl.policy import Learner, load_model
from mini_agentic_rl.post_training import SFTSettings, train_sft
from mini_agentic_rl.post_training.run import RunFolder
from post_training.samples import conversations, quick

ADAPTER = "adapter_model.safetensors"


class Killed(BaseException):
    """What no handler of a library catches."""


def kill_after(steps, monkeypatch):
    """Kill the training after so many optimizer steps of its process."""
    taken = []
    step = Learner.optim_step

    def optim_step(self):
        if len(taken) == steps:
            raise Killed
        taken.append(1)
        return step(self)

    monkeypatch.setattr(Learner, "optim_step", optim_step)


def weights(folder):
    return load_file(str(folder / ADAPTER))


def test_it_learns_and_writes_only_into_its_folder(tiny_folder, tmp_path, monkeypatch, capfd, recwarn):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "runs" / "sft"
    summary = train_sft(
        quick(SFTSettings, tiny_folder, out, num_epochs=4), train_rows=conversations(), eval_rows=conversations(4)
    )
    assert summary["after"]["loss"] < summary["before"]["loss"] - 1
    assert summary["measured_on"] == "held-out examples"
    assert (summary["steps"], summary["epochs"]) == (12, 4.0)
    assert summary["tokens"] > 4 * 12 * 10
    assert json.loads((out / "summary.json").read_text()) == json.loads(json.dumps(summary))
    assert sorted(path.name for path in out.glob("epoch_*")) == [f"epoch_{n}" for n in (1, 2, 3, 4)]
    assert {path.name for path in tmp_path.iterdir()} == {"runs"}
    assert capfd.readouterr().out == ""
    assert [str(warning.message) for warning in recwarn if warning.category is FutureWarning] == []
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, 13))
    assert all(row["tokens_per_second"] > 0 for row in rows if "loss" in row)
    assert [row["step"] for row in rows if "loss/eval" in row] == [0, 3, 6, 9, 12]
    last, final = weights(out / "epoch_4"), weights(out)
    assert last.keys() == final.keys()
    assert all(torch.equal(last[name], final[name]) for name in final)


def test_the_folder_is_a_model_for_the_policy_and_for_further_training(tiny_folder, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    one = train_sft(quick(SFTSettings, tiny_folder, first), train_rows=conversations())
    policy = load_model(str(first), device="cpu", dtype="float32")
    state = policy.peft_model.state_dict()
    for name, tensor in weights(first).items():
        assert torch.equal(state[name.replace(".weight", ".default.weight")], tensor)
    two = train_sft(quick(SFTSettings, first, second), train_rows=conversations())
    assert two["before"]["loss"] == pytest.approx(one["after"]["loss"], rel=1e-4)
    assert two["after"]["loss"] < one["after"]["loss"]
    assert json.loads((second / "adapter_config.json").read_text())["base_model_name_or_path"] == tiny_folder


def test_a_signal_while_an_epoch_is_saved_leaves_a_checkpoint_of_its_last_step(tiny_folder, tmp_path, monkeypatch):
    out = tmp_path / "run"
    save_epoch = RunFolder.save_epoch

    def interrupted(self, *arguments):
        signal.raise_signal(signal.SIGINT)
        return save_epoch(self, *arguments)

    monkeypatch.setattr(RunFolder, "save_epoch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train_sft(quick(SFTSettings, tiny_folder, out, num_epochs=2, checkpoint_every=2), train_rows=conversations())
    assert (out / "checkpoints" / "checkpoint-3").is_dir()


def test_a_killed_run_goes_on_and_ends_as_if_it_had_not_been_killed(tiny_folder, tmp_path, monkeypatch):
    options = {"num_epochs": 3, "checkpoint_every": 2}
    train_sft(quick(SFTSettings, tiny_folder, tmp_path / "whole", **options), train_rows=conversations())
    out = tmp_path / "killed"
    with monkeypatch.context() as patch:
        kill_after(5, patch)
        with pytest.raises(Killed):
            train_sft(quick(SFTSettings, tiny_folder, out, **options), train_rows=conversations())
    torn = out / "checkpoints" / "checkpoint-5"
    torn.mkdir()
    (torn / ADAPTER).write_bytes(b"half of it")
    mine = out / "checkpoints" / "checkpoint-best"
    mine.mkdir()
    os.utime(mine, (0, 0))  # older than every checkpoint
    with pytest.raises(UserError, match=r"checkpoint at step 4.*`resume`"):
        train_sft(quick(SFTSettings, tiny_folder, out, **options), train_rows=conversations())
    resumed = quick(SFTSettings, tiny_folder, out, **options, resume=True)
    summary = train_sft(resumed, train_rows=conversations())
    assert summary["steps"] == 9
    assert not torn.exists()
    assert mine.exists()
    whole, found = weights(tmp_path / "whole"), weights(out)
    assert all(torch.equal(whole[name], found[name]) for name in whole)
    steps = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [step for step in steps if step] == list(range(1, 10))
    assert train_sft(resumed, train_rows=conversations()) == json.loads((out / "summary.json").read_text())


def test_a_finished_run_is_kept_unless_it_is_to_be_replaced(tiny_folder, tmp_path):
    out = tmp_path / "run"
    settings = quick(SFTSettings, tiny_folder, out, max_steps=1)
    train_sft(settings, train_rows=conversations())
    (out / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="finished run"):
        train_sft(settings, train_rows=conversations())
    with pytest.raises(UserError, match=r"other settings: learning_rate"):
        train_sft(settings.model_copy(update={"resume": True, "learning_rate": 1.0}), train_rows=conversations())
    train_sft(settings.model_copy(update={"overwrite": True, "seed": 1}), train_rows=conversations())
    assert json.loads((out / "summary.json").read_text())["seed"] == 1
    assert (out / "notes.txt").read_text() == "mine"
    assert not (out / "epoch_1").exists()


def test_it_stops_when_the_held_out_loss_rises_and_keeps_the_best_weights(tiny_folder, tmp_path):
    out = tmp_path / "run"
    held_out = [
        {"messages": [row["messages"][0], {"role": "assistant", "content": "I think the sum is"}]}
        for row in conversations(8)
    ]
    stopping = {"num_epochs": 30, "early_stopping_patience": 2, "eval_fraction": 0.1, "learning_rate": 3e-2}
    settings = quick(SFTSettings, tiny_folder, out, **stopping)
    summary = train_sft(settings, train_rows=conversations(), eval_rows=held_out)
    assert summary["steps"] < 90
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss/eval"] for row in rows if "loss/eval" in row][1:]
    assert summary["after"]["loss"] == pytest.approx(min(losses), rel=1e-5)
    assert len(losses) == losses.index(min(losses)) + 3


def test_every_weight_is_trained_without_lora(tiny_folder, tmp_path):
    out = tmp_path / "run"
    settings = quick(SFTSettings, tiny_folder, out, use_lora=False, learning_rate=3e-3)
    summary = train_sft(settings, train_rows=conversations())
    assert summary["after"]["loss"] < summary["before"]["loss"]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert summary["parameters"]["trained"] == sum(parameter.numel() for parameter in model.parameters())
    assert tokenizer.chat_template
    assert load_model(str(out), device="cpu").peft_model is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"quantization": "4bit"}, r"mini-agentic-rl\[quant\]|CUDA"),
        ({"model": "./nowhere"}, "no model folder"),
        ({"max_length": 8}, "no example is left"),
        ({"output_dir": "the model", "overwrite": True}, "holds a model"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(tiny_folder, tmp_path, changes, says):
    if "output_dir" in changes:  # a model is never replaced by what is trained from it
        changes = {**changes, "output_dir": Path(tiny_folder)}
    settings = quick(SFTSettings, tiny_folder, tmp_path / "run").model_copy(update=changes)
    with pytest.raises(UserError, match=says):
        train_sft(settings, train_rows=conversations())


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match="`eval_fraction`"):
        SFTSettings(early_stopping_patience=1, eval_fraction=0)
    with pytest.raises(ValueError, match="`quantization=none`"):
        SFTSettings(use_lora=False, quantization="4bit")
    with pytest.raises(ValueError, match="same number"):
        SFTSettings(early_stopping_patience=1, checkpoint_every=3)
