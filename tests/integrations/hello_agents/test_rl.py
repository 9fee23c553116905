"""Data sets, rewards and trainers under the names of HelloAgents, the trainers on a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from datasets import Dataset
from mini_agentic_rl import rl
from mini_agentic_rl.datasets import DatasetError, load_examples
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.integrations.hello_agents import datasets
from mini_agentic_rl.integrations.hello_agents.rewards import REWARD_TYPES
from mini_agentic_rl.integrations.hello_agents.training import train_config
from mini_agentic_rl.policy import load_model


@pytest.fixture
def no_hub(monkeypatch):
    monkeypatch.setattr(datasets, "cached", lambda *_: False)
    monkeypatch.setattr(datasets, "ask_hub", lambda: False)


@pytest.fixture
def gsm8k_copy(tmp_path):
    """A folder with files as GSM8K's published ones."""
    rows = [{"question": f"What is {n} + 1?", "answer": f"{n} + 1 = <<{n}+1={n + 1}>>{n + 1}\n#### {n + 1}"}
            for n in range(40)]  # fmt: skip
    for name, part in (("train", rows[:30]), ("test", rows[30:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    return str(tmp_path)


def test_asking_for_what_is_installed_loads_no_torch():
    program = (
        "import sys; from mini_agentic_rl.rl import TRL_AVAILABLE, check_trl_installation, get_installation_guide; "
        "from mini_agentic_rl.tools import RLTrainingTool; RLTrainingTool().run({'action': 'nothing'}); "
        "print(TRL_AVAILABLE, check_trl_installation(), 'torch' in sys.modules, 'pip install' in "
        "get_installation_guide())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "False", "True"]


def test_a_configuration_checks_what_is_set_and_knows_all_its_fields():
    config = rl.TrainingConfig(num_train_epochs=1, use_bf16=True, use_tensorboard=True)
    config.lora_r = 4
    assert config.to_dict()["lora_r"] == 4
    assert (config.dtype, config.loggers) == ("bfloat16", ["tensorboard"])
    with pytest.raises(ValueError, match="lora_r"):
        config.lora_r = 0
    with pytest.raises(ValueError, match="num_epochs"):
        rl.TrainingConfig(num_epochs=3)


def test_rows_to_imitate_and_tasks_of_gsm8k(gsm8k_copy):
    written = rl.GSM8KDataset("train", 5, "sft", path=gsm8k_copy)
    assert len(written) == 5
    assert written[1:3] == [written[1], written[2]]
    assert [message["role"] for message in written[0]["messages"]][-1] == "assistant"
    tasks = rl.GSM8KDataset("test", None, "rl", path=gsm8k_copy).get_dataset()
    assert len(tasks) == 10
    assert {row["ground_truth"] for row in tasks} == {str(n) for n in range(31, 41)}
    assert all(row["prompt"][-1]["role"] == "user" for row in tasks)


def test_without_the_hub_a_data_set_that_nobody_named_is_generated(no_hub, caplog):
    rows = rl.create_rl_dataset(max_samples=4)
    assert len(rows) == 4
    assert all({"prompt", "ground_truth"} <= set(row) for row in rows)
    assert "GSM8K cannot be had" in caplog.text
    assert len(rl.create_sft_dataset(max_samples=3)) == 3


def test_gsm8k_is_taken_where_it_can_be_had(no_hub, gsm8k_copy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert rl.usual_dataset() == "arithmetic"
    (tmp_path / "gsm8k").symlink_to(gsm8k_copy)
    assert {row["ground_truth"] for row in rl.create_rl_dataset(split="test")} == {str(n) for n in range(31, 41)}
    assert len(rl.GSM8KDataset("test")) == 10
    assert len(load_examples("gsm8k", "preference", split="test")) == 10  # every command finds it there
    (tmp_path / "gsm8k").unlink()
    monkeypatch.setattr(datasets, "cached", lambda *_: True)
    assert rl.usual_dataset() == "gsm8k"


def test_tools_are_text_and_what_fits_into_no_column_is_told():
    rows = load_examples("medical", "sft", max_samples=3)
    found = rl.create_math_dataset("medical", "train", 3, "sft")
    assert [json.loads(tools) for tools in found["tools"]] == [row["tools"] for row in rows]
    with pytest.raises(DatasetError, match=r"medical: the rows do not fit into columns.*load_examples"):
        rl.create_math_dataset("medical", "train", 20, "rl")


def test_rows_of_ones_own_are_brought_into_form():
    rows = [{"question": "What is 6 * 7?", "answer": "6 * 7 = 42\n#### 42"}]
    tasks = rl.format_math_dataset(rows, "rl")
    assert isinstance(tasks, Dataset)
    (task,) = tasks
    assert task["ground_truth"] == "42"
    (written,) = rl.format_math_dataset(rows, "sft")
    assert "42" in written["messages"][-1]["content"]
    with pytest.raises(DatasetError, match="row 0"):
        rl.format_math_dataset([{"text": "nothing to ask"}], "rl")
    with pytest.raises(UserError, match="'chat'"):
        rl.format_math_dataset(rows, "chat")


def test_a_preview_shows_the_first_rows(capsys):
    rl.preview_dataset(rl.load_dataset("arithmetic", "rl", "train", 5), num_samples=2)
    shown = capsys.readouterr().out
    assert "2 of 5 rows" in shown
    assert shown.count("ground_truth:") == 2


def test_answers_are_read_and_compared():
    reward = rl.MathRewardFunction(tolerance=0.01)
    assert reward.extract_answer("6 * 7 = 42\nAnswer: $1,234.50") == "1234.5"
    assert reward.normalize_answer("$1,234") == "1234"
    assert reward.compare_answers("3.141", "3.14")
    assert not reward.compare_answers("3.2", "3.14")
    assert not reward.compare_answers("", "3")
    assert reward(["Answer: 5", "Answer: 6"], ground_truth=["5", "5"]) == [1.0, 0.0]
    assert reward([[{"role": "assistant", "content": "Answer: 5"}]], ground_truth=["5"]) == [1.0]


def test_a_reward_of_ones_own_on_the_math_reward():
    class Harsh(rl.MathRewardFunction):
        def __call__(self, completions, **kwargs):
            pairs = zip(completions, kwargs.get("ground_truth", []), strict=True)
            return [1.0 if (p := self.extract_answer(c)) and self.compare_answers(p, t) else -1.0 for c, t in pairs]

    found = rl.evaluate_rewards(["Answer: 2", "Answer: 3", "?"], ["2", "2", "2"], Harsh())
    assert found["rewards"] == [1.0, -1.0, -1.0]
    assert found["mean_reward"] == pytest.approx(-1 / 3)
    assert found["accuracy"] == pytest.approx(1 / 3)
    assert (found["min_reward"], found["max_reward"], found["num_samples"]) == (-1.0, 1.0, 3)


def test_length_costs_and_steps_earn_right_answers_alone():
    short, long = "Answer: 5", "x" * 30 + "\nAnswer: 5"
    brief = rl.create_length_penalty_reward(max_length=20, penalty_weight=0.01)
    assert brief([short, long, "y" * 50], ground_truth=["5"] * 3) == pytest.approx([1.0, 1.0 - 0.01 * 20, 0.0])
    steps = rl.create_step_reward(rl.create_accuracy_reward(), step_bonus=0.1)
    texts = ["Step 1: a\nStep 2: b\nAnswer: 5", "Step 1: a\nStep 2: b\nAnswer: 6", "Answer: 5"]
    assert steps(texts, ground_truth=["5"] * 3) == pytest.approx([1.2, 0.0, 1.0])


def test_a_reward_is_made_by_its_name():
    for name in REWARD_TYPES:
        (reward,) = rl.create_reward_function(name)(["Step 1: 2 + 3 = 5\nAnswer: 5"], ground_truth=["5"])
        assert reward >= 1.0
    with pytest.raises(UserError, match=r"'best'.*accuracy"):
        rl.create_reward_function("best")


def test_no_reward_is_no_figure_and_each_reply_needs_a_right_answer():
    with pytest.raises(UserError, match="1 entries for 2 completions"):
        rl.evaluate_rewards(["a", "b"], ["a"])
    found = rl.evaluate_rewards(["a", "b"], ["a", "b"], lambda completions, **_: [None, 0.5])
    assert (found["mean_reward"], found["without_reward"], found["num_samples"]) == (0.5, 1, 2)


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
