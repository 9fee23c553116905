"""Right answers are found right in every form, wrong ones wrong, and nothing hangs."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_agentic_rl.errors import UserError
from mini_agentic_rl.processes import DeadlineProcess
from mini_agentic_rl.rewards import AccuracyReward, extract_answer, is_correct
from mini_agentic_rl.rewards import math as comparison

BOUND = 5.0
"""Seconds of processor time, which other work on the machine does not lengthen, of what takes milliseconds."""


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: 1,234", "1234"), ("The answer is $1,234.50 per month.", "1234.5"), ("so \\boxed{42}", "42"),
        ("work\n#### 1,000", "1000"), ("it is about 42", "42"), ("Answer: 15%", "15%"),
        ("first 3, then 7 apples", "7"), ("Answer: \\boxed{\\frac{3}{4}}", "0.75"),
        ("\\boxed{\\frac{x}{y+{1}}}", "\\frac{x}{y+{1}}"), ("Answer: 12\nNo, wait.\nAnswer: 14", "14"),
        ("Answer: 12 + 30 = 42 apples", "42"), ("**Answer:** 42", "42"), ("Answer:\n42", "42"),
        ("Answer: x = 5", "5"), ("Answer: He needs 36 apples.", "36"), ("<think>Answer: 3</think>\nAnswer: 4", "4"),
        ("Answer: 2.5 million", "2500000"), ("Answer: 90^\\circ", "90"), ("Answer: −5", "-5"), ("-$5", "-5"),
        ("Answer: 3 1/2", "3.5"), ("Answer: 1 000", "1000"), ("I pick (B).", "B"), ("Answer: B) 12 apples", "B"),
        ("the answer is 5, not 6", "5"), ("Paris", "Paris"), ("x^2+1", "x^2+1"), ("5x", "5x"),
        ("Answer: approx. 3.14", "3.14"), (".5", "0.5"), ("So the point is (3, 4).", "(3, 4)"),
        ("解集为{1，2}。", "{1,2}"), ("That is a lot ($1,234).", "1234"),
        ("The total is 1,234, which is 100,200 less.", "100200"), ("答案是42。因为他原来有50个。", "42"),
        ("【答案】42", "42"), ("共42元", "42"), ("答：小明一共有1,234个苹果。", "1234"),
        ("答案：－４２．５", "-42.5"), ("答案是（Ｂ）。", "B"), ("故选C。", "C"), ("共3.5万元", "35000"),
        ("答案是２百万", "2000000"), ("答案是3千克", "3"), ("答え：二百五十六", "256"), ("答案為兩萬三千", "23000"),
        ("答案是壹佰贰拾元", "120"), ("答案是三点一四", "3.14"), ("答案是百分之二十", "20%"),
        ("答案是三分之二", "2/3"), ("答案是二〇二四年", "2024"), ("所以，一共有四十二只羊。", "42"),
        ("答案是万一", "万一"), ("答案是一样的", "一样的"), ("他们统一了一些地方，答案是7", "7"),
        ("Answer: ٤٢", "42"), ("الجواب: ١٬٢٣٤٫٥", "1234.5"),
    ],
)  # fmt: skip
def test_the_answer_is_found_and_undressed(text: str, answer: str) -> None:
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    "text", ["", "  \n", "<think>I guess Answer: 3", "no idea at all about any of that", "Answer:"]
)
def test_without_an_answer_there_is_none(text: str) -> None:
    assert extract_answer(text) is None
    assert not is_correct(text, "3")


@pytest.mark.parametrize(
    ("predicted", "gold"),
    [
        ("Answer: 42", "42"), ("42.0", "42"), ("$1,234", "1234"), ("1234 dollars", "$1,234.00"), ("15%", "0.15"),
        ("15%", "15"), ("15", "15%"), ("\\frac{1}{2}", "0.5"), ("about 42", "42"), ("42", 42), ("Answer: (b)", "B"),
        ("B. 42", "(B)"), ("It has to be (B) since 6 * 7 = 42", "B"), ("(1, 2)", [1, 2]), ("{2, 1}", {1, 2}),
        ("x = 1 or x = 2", "2, 1"), ("(1/2, 3]", "(0.5,3]"), ("Answer: yes", "Yes"), ("True", True),
        ("the answer is 72", "So.\n#### 72"), ("x^2+1", "1+x**2"), ("(x+1)^2", "x^2+2x+1"),
        ("2\\sqrt{3}", "sqrt(12)"), ("Answer: 2*pi", "2\\pi"), ("\\boxed{\\text{(B)}}", "B"),
        ("1.41421", "\\sqrt{2}"), ("pi", "3.1416"), ("e^2", "7.389"), ("ln(2)", "0.6931"), ("log(100)", "2"),
        ("log10(100)", "\\log_{10}(100)"), ("log_2(8)", "3"), ("0.3333", "1/3"),
        ("\\boxed{\\frac{22}{7}}", "3.143"), ("0.1+0.2", "0.3"), ("3 x 10^8", "300000000"), ("[A]", "A"),
        ("5 km", "5"), ("5", "5 km"), ("Answer: 5 km", "5000 meters"), ("1.5 hours", "90 min"),
        ("5 square meters", "5 m²"), ("$12.50", "12.5 dollars"), ("36 apples", "36 pieces of fruit"),
        ("3\\frac{1}{2}", "3.5"), ("3½", "7/2"), ("5 or -5", "±5"), ("infinity", "\\infty"),
        ("[8.124, 12.852]", "[8.124,12.852]"), ("Answer: 0,1", "0,1"), ("答案：四十二", 42), ("答案：42", "四十二"),
        ("4", "四"), ("42", "42元"), ("5公里", "5000米"), ("答案是2√3", "2*sqrt(3)"),
        ("Answer: 1,000 and 2,000", "1000, 2000"), ("[8.124,852, 3]", "[8.124, 852, 3]"), ("答案：北京。", "北京"),
        ("答案：2024年5月3日", "2024年5月3日"), ("The answer is May 3, 2024. It was a Friday.", "May 3, 2024"),
        ("x² + 1", "x^2+1"), ("10⁻³", "0.001"), ("2^0.5", "sqrt(2)"), ("π", "\\pi"), ("5 m²", "50000 cm²"),
        ("[42]", "42"),
        ("x = 1, y = 2", "y = 2, x = 1"), ("x=1, y=2", "(1, 2)"), ("1, 2", "x=1, y=2"), ("x \\in [0, 1)", "[0,1)"),
        ("Answer: Room 3B", "Room 3B"), ("Answer: 5 apples and 3 pears", "3 pears, 5 apples"),
    ],
)  # fmt: skip
def test_the_same_answer_in_another_form_is_right(predicted: str, gold: Any) -> None:
    assert is_correct(predicted, gold)


@pytest.mark.parametrize(
    ("predicted", "gold"),
    [
        ("100.5", "99"), ("-42", "42"), ("0.15%", "15%"), ("42", "B"), ("5x", "5"), ("5 million", "5"),
        ("4 or 5", "5"), ("(2, 1)", "(1, 2)"), ("[1,2]", "(1,2)"), ("(1, 2, 3)", "(1, 2)"), ("{1, 1}", {1, 2}),
        ("3.1", "3.14159"), ("Paris", "London"), ("1e400", "1"), ("I computed 42 first. Answer: 41", "42"),
        ("1/0", "1"), ("sqrt(2)", "1.5"), ("2^10", "1023"), ("10^30+1", "10^30"), ("log(100)", "3"),
        ("5 km", "5 m"), ("$5", "€5"), ("7 am", "7 pm"), ("5 km/h", "5 m/s"), ("5 m^2", "5 m"), ("±5", "5"),
        ("nan", "nan"), ("nan", "5"), ("inf", "-inf"), ("\\infty", "1e308"), ("3\\frac{1}{2}", "15.5"),
        ("0,123", "123"), ("5万", "5"), ("百分之42", "4200"), ("3分之2", "3"),
        ("x² + 1", "x³ + 1"), ("2^0.5", "0.5"), ("5 m²", "5 cm²"), ("x = 1, y = 2", "x = 2, y = 1"),
        ("(2, 1)", "x=1, y=2"),
        ("Answer: May 4, 2024", "May 3, 2024"), ("答案：第3题", "第4题"),
    ],
)  # fmt: skip
def test_another_answer_is_wrong(predicted: str, gold: Any) -> None:
    assert not is_correct(predicted, gold)


def test_a_tolerance_is_relative_to_the_right_answer() -> None:
    assert is_correct("101", "100", rel_tol=0.01)
    assert not is_correct("102", "100", rel_tol=0.01)
    assert is_correct("-3.14", "-3.14159", rel_tol=1e-3)
    assert is_correct("(1.001, 2)", "(1, 2)", rel_tol=0.01)
    assert is_correct("sqrt(2)", "1.5", rel_tol=0.1)
    assert not is_correct("sqrt(2)", "1.4142", rel_tol=1e-6)


def test_by_default_a_number_may_be_rounded_and_not_be_another_one() -> None:
    assert is_correct("3.14", math.pi)
    assert is_correct("1.42", "sqrt(2)")
    assert is_correct("1.415", "sqrt(2)"), "one percent between a value and what was computed"
    assert is_correct("100.5", "100")
    assert not is_correct("8479.63", "8543.63"), "within one percent, but nobody rounds like that"
    assert not is_correct("12.46", "12.45")
    assert is_correct("8479.63", "8543.63", rel_tol=0.01)


@pytest.mark.parametrize("value", [-1, 1, 1.5, math.nan, math.inf, "0.01", True])
def test_a_tolerance_that_compares_nothing_is_a_mistake_of_the_user_by_its_name(value: Any) -> None:
    for compare in (lambda: is_correct("1", "1", rel_tol=value), lambda: AccuracyReward(rel_tol=value)):
        with pytest.raises(UserError, match="rel_tol: must be a number from 0 to below 1") as raised:
            compare()
        assert raised.value.setting == "rel_tol"
    with pytest.raises(UserError, match="abs_tol"):
        AccuracyReward(abs_tol=-0.1)


def test_a_right_answer_that_is_nan_or_empty_is_an_error_and_no_silent_zero() -> None:
    for gold, reason in ((math.nan, "nan"), ("  ", "empty")):
        with pytest.raises(ValueError, match=reason):
            is_correct("5", gold)


@given(st.integers(-(10**12), 10**12))
def test_grouped_and_dressed_integers_are_read_exactly(value: int) -> None:
    assert is_correct(f"So the answer is {value:,} dollars.", value)
    assert not is_correct(f"So the answer is {value:,} dollars.", value + 1)


@pytest.mark.parametrize(
    "text",
    [
        "answer is" + " " * 9000 + "\n\n5", "\\boxed{" * 4000, "Answer: " + "**a " * 5000,
        "Answer: " + "so " * 6000, "Answer: 5 aa" + " " * 9000 + "\x00", "1,234" * 4000, "(" * 9000,
        "Answer: " + "[" * 150 + "1,2" + "]" * 150, "9" * 20_000, "answer " * 5000, "$" * 20_000,
        "Answer: 1" + " and 1" * 3000, "Answer: " + "½" * 9000, "Answer: " + "±" * 9000,
        "Answer: 5 " + "square " * 3000 + "m", "Answer: (" + " " * 9000 + "A", "９" * 20_000, "答案是" * 6000,
        "(1," * 6000, "(" + "1," * 9000 + "1", "√" * 9000, "答案" + "】" * 9000 + "\n",
        "百分之" + " " * 9000 + "负" + " " * 9000, "1,234" + ",234" * 4000 + ",5 元", "答案：5" + "元" * 9000,
    ],
)  # fmt: skip
def test_text_made_to_be_slow_is_not(text: str) -> None:
    started = time.thread_time()
    assert not is_correct(text, "77")
    assert time.thread_time() - started < BOUND


def test_plain_numbers_never_start_an_algebra_package() -> None:
    code = (
        "import sys, subprocess\n"
        "subprocess.Popen = None\n"
        "from mini_agentic_rl.rewards import is_correct\n"
        "assert is_correct('Answer: $1,234.50', '1234.5') and not is_correct('7', '8')\n"
        "assert is_correct('Answer: B', 'B') and not is_correct('Answer: B', 'C')\n"
        "assert not {'sympy', 'math_verify', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_algebra_that_would_run_for_ever_counts_as_wrong_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_correct("x+1", "1+x")
    monkeypatch.setattr(comparison, "TIME_LIMIT", 0.5)
    assert not is_correct("Answer: 9^{9^{9^{9}}} + x", "x")
    monkeypatch.undo()
    assert is_correct("y+2", "2+y"), "the helper process comes back after a time-out"


def test_expressions_are_compared_from_any_thread() -> None:
    results: list[bool] = []
    threads = [threading.Thread(target=lambda n=n: results.append(is_correct(f"x+{n}", f"{n}+x"))) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 6


def test_a_helper_that_cannot_start_is_an_error_and_no_silent_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "_helper", DeadlineProcess("no_such_package.worker"))
    with pytest.raises(comparison.SymbolicError):
        is_correct("z+3", "3+z")
