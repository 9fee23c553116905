"""The calculator agrees with Python's own arithmetic, and nothing a model types can hurt it."""

from __future__ import annotations

import math
import time
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_agentic_rl.tools.calculator import MAX_DEPTH, MAX_DIGITS, MAX_LENGTH, calculate


@st.composite
def expressions(draw: st.DrawFn, depth: int = 4) -> str:
    if depth == 0 or draw(st.booleans()):
        return str(draw(st.integers(0, 9999)))
    left, right = draw(expressions(depth=depth - 1)), draw(expressions(depth=depth - 1))
    operator = draw(st.sampled_from(["+", "-", "*", " + ", " - ", " * ", "//", "%"]))
    if operator == "%":
        right = f"({right})"
    return draw(st.sampled_from([f"{left}{operator}{right}", f"({left}){operator}({right})", f"-({left})"]))


@given(expressions())
def test_integer_expressions_agree_with_python(expression: str) -> None:
    try:
        expected = str(eval(expression))  # the expression is built from digits and operators above
    except ZeroDivisionError:
        expected = "error: division by zero"
    if len(expression) <= MAX_LENGTH:
        assert calculate(expression) == expected


@given(st.integers(-(10**6), 10**6), st.integers(-(10**4), 10**4).filter(bool), st.integers(-12, 12))
def test_quotients_and_powers_agree_with_python(a: int, b: int, n: int) -> None:
    assert float(calculate(f"({a})/({b})")) == pytest.approx(a / b, abs=1e-10)
    assert float(calculate(f"({b})**({n})")) == pytest.approx(float(Fraction(b) ** n), rel=1e-9, abs=1e-10)


@given(st.lists(st.decimals(-10_000, 10_000, places=2), min_size=2, max_size=6))
def test_money_adds_up_to_the_cent(amounts: list[Decimal]) -> None:
    assert Decimal(calculate("+".join(f"({amount})" for amount in amounts))) == sum(amounts)


@given(st.one_of(st.text(max_size=600), st.text("0123456789+-*/%^().,eE sqrtmaxpi×÷", max_size=600)))
@settings(max_examples=400)
def test_any_text_gets_a_short_answer_quickly(text: str) -> None:
    started = time.thread_time()
    result = calculate(text)
    assert time.thread_time() - started < 2
    assert 0 < len(result) <= 120
    assert result.startswith("error: ") or math.isfinite(float(result))


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9", "9^9^9^9^9", "(10**99)**99", "0.5**1000000000", "1e999999999", "2**-99999999999", "exp(10**50)",
        "(" * 5000 + "1" + ")" * 5000, "(" * 100 + "1" + ")" * 100, "-" * 300 + "(" * 99, "2**" * 100 + "2",
        "sqrt(" * 60 + "2" + ")" * 60, "9" * 300, "*".join(["9" * 60] * 6), "factorial(100000)", "__import__('os')",
        "1/0", "5 % 0", "5 // 0", "0**-1", "sqrt(-1)", "(-8)**0.5", "log(0)", "min()", "max(1,", "round(1, 0.5)", "",
        " ", "()", "1 2", "1,23", "1+", "+", "12..5", "1.5.2", "apples", "2 apples", "\x00", "🙂", "lambda: 1",
    ],
)  # fmt: skip
def test_what_has_no_value_is_an_error_and_takes_no_time(expression: str) -> None:
    started = time.thread_time()
    assert calculate(expression).startswith("error: ")
    assert time.thread_time() - started < 2


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("0.1+0.2", "0.3"), ("1/3*3", "1"), ("1/3", "0.3333333333"), ("10/4", "2.5"), ("2.50*4", "10"),
        ("-2**2", "-4"), ("2**3**2", "512"), ("2^10", "1024"), ("2**-1", "0.5"), ("1,234 + 1", "1235"),
        ("$1,200/8", "150"), ("3 x 4", "12"), ("4 × 3 ÷ 2", "6"), ("5 − 7", "-2"), ("15% of 80", "12"),
        ("200*15%", "30"), ("17 % 5", "2"), ("-7//2", "-4"), ("-7 % 3", "2"), ("12*3=", "36"), ("sqrt(16)", "4"),
        ("sqrt(2)", "1.41421356237"), ("max(1,234)", "234"), ("min(3, 1, 2)", "1"), ("max(3)", "3"),
        ("min(-1/2)", "-0.5"), ("max(max(pi))", "3.14159265359"), ("sqrt(1,024)", "32"), ("abs(-3.50)", "3.5"),
        ("round(2/3, 2)", "0.67"), ("floor(7/2)", "3"), ("ceil(7/2)", "4"), ("ln(e)", "1"), ("log(8, 2)", "3"),
        ("log10(1000)", "3"), ("cos(0)", "1"), ("2*pi", "6.28318530718"), ("1.5e3", "1500"),
        ("99999999999*99999999999", "9999999999800000000001"), ("+-+5", "-5"), ("SQRT(9)", "3"),
    ],
)  # fmt: skip
def test_what_people_type_is_understood(expression: str, value: str) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("sqrt()", "sqrt needs an argument"),
        ("max( )", "max needs an argument"),
        ("sqrt(1, 2)", "sqrt takes 1 argument"),
        ("round(1, 2, 3)", "round takes 1 to 2 arguments"),
        (f"max({'1,' * 150}1)", "max takes 1 to 99 arguments"),
    ],
)  # fmt: skip
def test_a_wrong_number_of_arguments_is_told(expression: str, reason: str) -> None:
    assert calculate(expression) == f"error: {reason}"


def test_what_is_no_text_gets_an_answer_too() -> None:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    assert calculate(7) == "7"  # type: ignore[arg-type]  # what a model's tool call may hand over
    assert calculate(nested) == "error: nested too deeply"  # type: ignore[arg-type]  # the same
    assert calculate(10**5000) == "error: number too large"  # type: ignore[arg-type]  # the same


def test_the_limits_themselves_are_allowed() -> None:
    assert calculate("(" * MAX_DEPTH + "1" + ")" * MAX_DEPTH) == "1"
    assert calculate("9" * MAX_DIGITS) == "9" * MAX_DIGITS
    assert calculate("1" + " " * (MAX_LENGTH - 1)) == "1"
