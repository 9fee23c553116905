"""docs/rewards.md and docs/datasets.md: the values that they show, and what they say of rows and judges."""

from __future__ import annotations

import json

from pages.snippets import python_block
from rewards.servers import serving

SUM = python_block("docs/rewards.md", "reward = WeightedSum(")
POLITE = python_block("docs/rewards.md", "def polite(")
JUDGE = python_block("docs/rewards.md", "judge = JudgeReward(")
ROWS = python_block("docs/datasets.md", "divide_examples(rows")


def test_a_weighted_sum_gives_the_number_that_the_page_shows(here):
    ran = SUM.run()
    assert len(ran.values) == 1  # compared with its comment by `run`
    assert "# [1.2]" in SUM.text
    assert ran.names["reward"](completions=["Answer: 35"], prompts=["12 times 3?"], ground_truth=["36"]) == [0.2]


def test_any_callable_is_part_of_a_sum(here):
    (total,) = POLITE.run(before="from mini_agentic_rl.rewards import AccuracyReward, WeightedSum").values
    columns = {"prompts": ["12 times 3?"] * 2, "ground_truth": ["36"] * 2}
    assert total(completions=["Answer: 36, if you please", "Answer: 36"], **columns) == [2.0, 1.0]


def test_a_judge_weighs_its_criteria_at_the_endpoint_that_it_is_given(here, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    asked = []

    def judged(path, body, headers):
        asked.append((path, body["model"]))
        said = json.dumps({"reason": "true, but not clear", "scores": {"truth": 5, "clarity": 1}})
        message = {"role": "assistant", "content": said}
        choices = [{"index": 0, "finish_reason": "stop", "message": message}]
        return 200, {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": choices}

    with serving(judged) as url:
        judge = JUDGE.run({"http://localhost:8000": url}).names["judge"]
        (score,) = judge(completions=["Rest."], prompts=["What helps?"])
    assert asked == [("/v1/chat/completions", "gpt-4o-mini")]
    assert 0 <= score <= 1
    assert score == (3 * highest(judge, 5) + highest(judge, 1)) / 4


def highest(judge, score):
    """Return a score of the judge's scale on the scale from 0 to 1."""
    rubric = judge.rubric
    return (min(score, rubric.highest) - rubric.lowest) / (rubric.highest - rubric.lowest)


def test_examples_are_divided_into_training_and_held_out_ones(here):
    names = ROWS.run().names
    train, held_out = names["train"], names["held_out"]
    assert (len(names["rows"]), len(train), len(held_out)) == (500, 450, 50)
    assert not {str(row) for row in train} & {str(row) for row in held_out}
