"""Data sets and rewards under the names of HelloAgents."""

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
