"""Trainers as objects, on a tiny model."""

from __future__ import annotations

import pytest

from mini_agentic_rl import rl
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.integrations.hello_agents.training import train_config
from mini_agentic_rl.policy import load_model


def _config(model, folder, **changes):
    values = {"num_train_epochs": 1, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 1}
    values |= {"samples_per_prompt": 2, "max_new_tokens": 4, "max_length": 1024, "lora_r": 2, "learning_rate": 1e-3}
    return rl.TrainingConfig(model_name=str(model), output_dir=str(folder), **(values | changes))


def _letters(completions, **columns):
    """More for answers with an "e"."""
    return [text.count("e") / (1 + len(text)) for text in completions]


def _tasks(count):
    return [{"prompt": [{"role": "user", "content": f"Say {n}"}], "ground_truth": str(n)} for n in range(count)]


def test_reinforcement_after_imitation_measures_keeps_each_epoch_saves_and_resumes(tiny_folder, tmp_path):
    rows = rl.load_dataset("arithmetic:1", "sft", "train", 4)
    sft = rl.train_with_sft(tiny_folder, rows, str(tmp_path / "sft"), max_steps=1, max_length=1024, lora_r=2)
    assert sft["steps"] == 1
    seen = []

    def reward(completions, **columns):
        seen.append(set(columns))
        return _letters(completions)

    config = _config(tmp_path / "sft", tmp_path / "grpo", num_train_epochs=2, lora_r=16)
    trainer = rl.GRPOTrainerWrapper(config=config, dataset=_tasks(2), reward_fn=reward, eval_dataset=_tasks(2))
    with pytest.raises(UserError, match="trained nothing yet"):
        trainer.save_model()
    trainer.setup_model()
    summary = trainer.train()
    assert summary["steps"] == 2
    assert set(summary["mean_reward"]) == {"before", "after RL"}
    assert all({"prompts", "ground_truth", "finish_reason"} <= columns for columns in seen)
    epochs = sorted(trainer.run_folder.glob("epoch_*"))
    assert [path.name for path in epochs] == ["epoch_1", "epoch_2"]
    target = trainer.save_model(tmp_path / "elsewhere")
    assert (target / "tokenizer.json").is_file()
    first, last, saved = [(folder / "adapter_model.safetensors").read_bytes() for folder in (*epochs, target)]
    assert first != last == saved
    assert load_model(str(target)).peft_model.peft_config["default"].r == 2, "the imitation's adapter learns on"
    with pytest.raises(UserError, match="holds a finished run"):
        trainer.train()
    assert trainer.train(resume=True)["steps"] == 2


def test_ppo_learns_with_a_critic(tiny_folder, tmp_path):
    trainer = rl.PPOTrainerWrapper(
        _config(tiny_folder, tmp_path, samples_per_prompt=None, max_steps=1), _tasks(2), reward_model=_letters
    )
    assert trainer.train()["steps"] == 1
    assert (trainer.save_model(tmp_path / "result") / "adapter_model.safetensors").is_file()


def test_options_of_a_method_are_checked(tiny_folder, tmp_path):
    rows = rl.create_math_dataset("arithmetic:1", "train", 2, "preference")
    config = _config(tiny_folder, tmp_path)
    for wrong, complaint in (
        ({"beta": -1}, "beta"),
        ({"desirable_weight": 2.0}, "desirable_weight"),
        ({"batch_size": 2}, r"batch_size.*TrainingConfig"),
    ):
        with pytest.raises((ValueError, UserError), match=complaint):
            rl.DPOTrainerWrapper(config, rows, **wrong).train()
    kinds = [rl.SFTTrainerWrapper, rl.DPOTrainerWrapper, rl.KTOTrainerWrapper, rl.ORPOTrainerWrapper]
    assert {kind.method for kind in (*kinds, rl.RewardTrainerWrapper)} == set(rl.SUPERVISED)


def test_an_algorithm_is_made_with_the_settings_of_the_configuration(tmp_path):
    config = _config("embedded", tmp_path, max_steps=7, samples_per_prompt=4, save_steps=3)
    assert train_config("grpo", config).lora.dropout == 0.0
    config.lora_dropout = 0.1
    assert train_config("grpo", config).lora.dropout == 0.1
    for name in ("grpo", "ppo"):
        settings = train_config(name, config).loop
        assert (settings.total_steps, settings.total_epochs, settings.tasks_per_step) == (7, None, 2)
        assert (settings.samples_per_prompt, settings.checkpoint_every, settings.max_new_tokens) == (4, 3, 4)


def test_what_a_trainer_cannot_do_is_told(tiny_folder, tmp_path):
    with pytest.raises(UserError, match="no dataset"):
        rl.SFTTrainerWrapper(_config(tiny_folder, tmp_path)).train()
    config = _config(tiny_folder, tmp_path, lora_target_modules=["q_proj"])
    with pytest.raises(UserError, match="lora_target_modules"):
        rl.SFTTrainerWrapper(config, rl.load_dataset("arithmetic", "sft", "train", 2)).train()
    with pytest.raises(UserError, match=r"'q-learning' is unknown: choose grpo"):
        rl.GRPOTrainerWrapper(_config(tiny_folder, tmp_path), _tasks(1), algorithm="q-learning").train()
    with pytest.raises(UserError, match="nowhere"):
        rl.GRPOTrainerWrapper(_config(str(tmp_path / "nowhere"), tmp_path), _tasks(1)).setup_model()
    with pytest.raises(UserError, match="model_revision"):
        rl.SFTTrainerWrapper(_config(tiny_folder, tmp_path, model_revision="main")).setup_model()


async def test_a_model_is_measured_by_any_reward_also_where_an_event_loop_runs(tiny_folder):
    def quarter(completions, **columns):
        return [0.25] * len(completions)

    found = rl.evaluate_model(tiny_folder, _tasks(3), quarter, max_new_tokens=4)
    assert (found["count"], found["average_reward"], found["accuracy"]) == (3, 0.25, 0.0)
