"""GAIA's score, rule by rule."""

from __future__ import annotations

import pytest

from mini_agentic_rl.recipes.gaia.tasks import final_answer, is_right


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("42", "42"),
        ("42.0", "42"),
        ("$1,234.50", "1234.5"),
        ("17%", "17"),
        ("1,000,000", "1000000"),
        ("1e3", "1000"),
        ("Paris", "paris"),
        ("St. Petersburg", "St Petersburg"),
        ("the sea gull", "The Seagull"),
        ("a, b, c", "a,b,c"),
        ("Apple, pear", "apple,Pear"),
        ("1, 2.0, $3", "1, 2, 3"),
        ("Santa Clara, Boston", "santaclara, boston"),
        ("东京", "东京"),
    ],
)
def test_right_answers(answer, gold):
    assert is_right(answer, gold)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (None, "42"),
        ("", "42"),
        ("43", "42"),
        ("42 apples", "42"),
        ("forty-two", "42"),
        ("Paris, France", "Paris"),
        ("a, b", "a, b, c"),
        ("b, a", "a, b"),
        ("a., b", "a, b"),
        ("1, two", "1, 2"),
        ("1,000, 5", "1000, 5"),
    ],
)
def test_wrong_answers(answer, gold):
    assert not is_right(answer, gold)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("FINAL ANSWER: 42", "42"),
        ("I think.\nFinal answer: 3, 4\nBye.", "3, 4"),
        ("FINAL ANSWER: 1\nNo, wait.\nFINAL ANSWER: 2", "2"),
        ("FINAL ANSWER:\nParis", "Paris"),
        ("**FINAL ANSWER: Paris**", "Paris"),
        ("FINAL ANSWER: [Paris]", "Paris"),
        ("FINAL ANSWER: `x = [1]`", "x = [1]"),
        ("FINAL ANSWER:", None),
        ("FINAL ANSWER: \n\nwell", None),
        ("The answer is 42.", None),
    ],
)
def test_the_final_answer_is_what_follows_the_last_marker(text, answer):
    assert final_answer(text) == answer
