"""The generators of reasoning-gym as data sets, and their scorers in a process that can do no harm."""

from __future__ import annotations

from pathlib import Path

import pytest

from mini_agentic_rl.datasets import DatasetError, find_family, load_examples, load_task_dataset
from recipes.playing import says

SUM = "reasoning_gym:chain_sum?min_terms=2&max_terms=2"


def reward(name, row, text):
    episode = find_family(name).start(row)
    assert episode.receive(says(text)) == []
    return episode.scores()["reward"]


def test_a_generator_gives_rows_by_seed_that_share_no_question_between_splits():
    parts = {split: load_task_dataset(SUM, split, 40, seed=1) for split in ("train", "val", "test")}
    questions = [row["question"] for rows in parts.values() for row in rows]
    assert len(set(questions)) == 120
    assert parts["val"][0]["source"]["settings"] == {"min_terms": 2, "max_terms": 2}
    assert all(len(question.split("+")) + question.count(" - ") >= 2 for question in questions)
    assert list(load_task_dataset(SUM, "val", 40, seed=1)) == list(parts["val"])
    assert list(load_task_dataset(SUM, "val", 10, seed=1)) == list(parts["val"])[:10]
    assert not {row["question"] for row in load_task_dataset(SUM, "test", 40, seed=2)} & {
        row["question"] for row in parts["train"]
    }


@pytest.mark.parametrize("name", [SUM, "reasoning_gym:gcd"])
def test_the_expert_earns_the_generators_whole_score(name):
    (example,) = load_examples(name, "sft", max_samples=1)
    (row,) = load_task_dataset(name, "train", 1)
    assert reward(name, row, example["messages"][-1]["content"]) == 1.0
    assert reward(name, row, "I do not know.") == 0.0
    assert reward(name, row, f"Answer: {row['answer']}\nAnswer: {row['answer']}") == 0.0


def test_partial_credit_is_what_the_scorer_gives():
    (row,) = load_task_dataset("reasoning_gym:letter_counting", "train", 1)
    assert 0 <= reward("reasoning_gym:letter_counting", row, "Answer: seven") < 1
    (row,) = load_task_dataset("reasoning_gym:sentence_reordering", "train", 1)
    words = row["answer"].split()
    half = " ".join([*words[: len(words) // 2], *reversed(words[len(words) // 2 :])])
    assert 0 < reward("reasoning_gym:sentence_reordering", row, f"Answer: {half}") < 1


def test_an_answer_that_is_a_program_does_nothing(tmp_path: Path):
    """number_sorting evaluates the answer as Python, as several scorers do."""
    file = tmp_path / "written"
    (row,) = load_task_dataset("reasoning_gym:number_sorting", "train", 1)
    programs = [
        f"open({str(file)!r}, 'w').write('x')",
        f"__import__('os').system('touch {file}')",
        f"__import__('subprocess').run(['touch', {str(file)!r}])",
        f"__import__('os').open({str(file)!r}, 65)",
        "__import__('socket').socket()",
        "__import__('os')._exit(0)",
        "exit()",
        "[0] * 10**12",
    ]
    for program in programs:
        assert reward("reasoning_gym:number_sorting", row, f"Answer: {program}") < 1
    assert not file.exists()
    assert reward("reasoning_gym:number_sorting", row, f"Answer: {row['answer']}") == 1.0


def test_a_generator_may_know_no_answers_or_print(capfd):
    (row,) = load_task_dataset("reasoning_gym:bf", "train", 1)
    assert reward("reasoning_gym:bf", row, f"Answer: {row['answer']}") == 1.0
    assert capfd.readouterr().out == ""
    assert len(load_examples("reasoning_gym:boxnet", "rl", max_samples=2)) == 2
    with pytest.raises(DatasetError, match="only how to check them"):
        load_examples("reasoning_gym:boxnet", "sft", max_samples=2)


def test_what_is_not_there_is_said_with_what_is_near():
    with pytest.raises(DatasetError, match=r"no generator 'chain_sun' \(did you mean 'chain_sum'\?\); it has: ab, "):
        load_task_dataset("reasoning_gym:chain_sun", "train", 1)
    with pytest.raises(DatasetError, match="no generator ''; it has: ab, "):
        load_task_dataset("reasoning_gym", "train", 1)
    with pytest.raises(DatasetError, match=r"cannot be made with .*no_such_setting"):
        load_task_dataset("reasoning_gym:gcd?no_such_setting=1", "train", 1)
    with pytest.raises(DatasetError, match="key=value"):
        load_task_dataset("reasoning_gym:gcd?min_numbers", "train", 1)
    with pytest.raises(DatasetError, match=r"no more than [0-9]+ test problems at hand"):
        load_task_dataset("reasoning_gym:gcd?min_value=1&max_value=2&min_numbers=2&max_numbers=2", "test", 500)
