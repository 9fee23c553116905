"""Every call that the calculator's grammar allows, and many that it does not, has an answer: a number or why not."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from mini_agentic_rl.tools import calculate
from mini_agentic_rl.tools.calculator import MAX_LENGTH
from mini_agentic_rl.tools.numbers import CONSTANTS, FUNCTIONS

from .conftest import Attack

LIMIT_S = 1.0
"""Seconds of one answer: thousands of times what it takes, and far below what an unbounded power would."""

FUNCTION_NAMES = [*FUNCTIONS, "factorial", "gcd", "pow", "sum", "int", "float", "__import__", "x", "of"]
PLAIN = ["", "0", "1", "-1", "3", "0.5", "-2.5", "1/3", *CONSTANTS]
ODD = [
    *PLAIN,
    *("1e-99", "1e99", "1e999", "-1e99", "9" * 99, "-" + "9" * 99, "9" * 390, "1" + "0" * 300, "." + "0" * 99 + "1"),
    *("10**99", "2**300", "2**-300", "9**9**9", "(-8)**(1/3)", "0**-1", "exp(200)", "-exp(200)", "sqrt(-1)", "log(0)"),
    *("max(1)", "min(max(1, 2))", "()", ",", "1,234", "1,23", "12..5", "$5", "$1,234.50", "£3", "15%", "15%%", "150 %"),
    *("5 km", "km", "3 apples", "°", "inf", "nan", "-inf", "1j", "0x1f", "1_000", "١٢", "5!", "2²", "½", "√2", "∞"),
    *(
        "1 2",
        "1+",
        "*1",
        "1//",
        "((((1",
        "1))))",
        "\x00",
        "\ud800",
        "🙂",
        "[1, 2]",
        "{}",
        "'1'",
        "1 of 2",
        "x",
        "=",
        "^",
    ),
]
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "^", " x ", " of ", "× ", "÷", " ", ",", "=", "% ", "e"]


def calls() -> Iterator[str]:
    """Give every function with none, one and two of the odd values, and with three to five of the plain ones."""
    for name in FUNCTION_NAMES:
        yield name
        for count in range(3):
            for values in itertools.product(ODD, repeat=count):
                yield f"{name}({', '.join(values)})"
        for count in range(3, 6):
            for values in itertools.product(PLAIN[: 10 - count], repeat=count):
                yield f"{name}({', '.join(values)})"


def expressions() -> st.SearchStrategy[str]:
    """Give nested expressions, about as many of them right as wrong."""
    atoms = st.sampled_from(ODD) | st.integers().map(str) | st.floats(allow_nan=False).map(repr)
    return st.recursive(
        atoms,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(OPERATORS), inner).map("".join),
            st.tuples(st.sampled_from(FUNCTION_NAMES), st.lists(inner, max_size=5)).map(
                lambda call: f"{call[0]}({', '.join(call[1])})"
            ),
            st.tuples(st.sampled_from(["(", "-", "+-", "$", "$ ("]), inner, st.sampled_from([")", "", "%", " %"])).map(
                "".join
            ),
        ),
        max_leaves=25,
    )


def answered(answer: str) -> None:
    """Check that an answer is one short line: a finite number, or an error that says something."""
    assert 0 < len(answer) <= 120
    assert "\n" not in answer
    if answer.startswith("error: "):
        assert len(answer) > len("error: ")
    else:
        assert math.isfinite(float(answer))


def share(attack: Attack, every: list[Any]) -> int:
    """Return how many of them this run tries."""
    return min(len(every), attack.times(len(every)))


def test_every_function_with_none_to_five_arguments_answers(attack: Attack) -> None:
    every = list(calls())
    with attack.memory_of(os.getpid()):
        for call in random.Random(17).sample(every, share(attack, every)):
            with attack.attempt(call, limit_s=LIMIT_S):
                answered(calculate(call))


def test_every_operator_between_odd_values_answers(attack: Attack) -> None:
    every = list(map("".join, itertools.product(ODD, OPERATORS, ODD)))
    for expression in random.Random(17).sample(every, share(attack, every)):
        with attack.attempt(expression, limit_s=LIMIT_S):
            answered(calculate(expression))


def test_nested_expressions_are_answered(attack: Attack) -> None:
    @seed(17)
    @settings(max_examples=attack.times(8_000), database=None)
    @given(expressions())
    def tried(expression: str) -> None:
        with attack.attempt(expression, limit_s=LIMIT_S):
            answered(calculate(expression))

    tried()


def test_one_symbol_again_and_again_is_answered(attack: Attack) -> None:
    symbols = [
        *ODD[1:],
        *OPERATORS,
        "(",
        ")",
        "sqrt(",
        "max(",
        "max(1,",
        "-(",
        "2**",
        "2^(",
        "1%",
        "$",
        "9",
        "\n",
        "\t",
    ]
    counts = [2, 3, 17, 40, 41, 100, 399, MAX_LENGTH, MAX_LENGTH + 1, 10**6]
    every = list(itertools.product(symbols, counts))
    for symbol, count in random.Random(17).sample(every, share(attack, every)):
        with attack.attempt(f"{symbol!r} × {count}", limit_s=LIMIT_S):
            answered(calculate(symbol * count))


async def test_the_calculator_over_mcp_answers(attack: Attack) -> None:
    mcp = pytest.importorskip("mcp", reason="the calculator over MCP is left unchecked; install mcp")
    from mini_agentic_rl.tools.mcp_calculator import calculator_server

    every = [call for call in calls() if call.isprintable()]
    async with mcp.Client(calculator_server()) as client:
        for call in random.Random(18).sample(every, min(len(every), attack.times(2_000))):
            with attack.attempt(call, limit_s=LIMIT_S * 10):
                result = await client.call_tool("calculator", {"expression": call})
                (part,) = result.content
                assert part.text == calculate(call)
                assert result.is_error == part.text.startswith("error: ")


async def test_arguments_that_are_no_expression_are_an_error_of_the_tool(attack: Attack) -> None:
    mcp = pytest.importorskip("mcp", reason="the calculator over MCP is left unchecked; install mcp")
    from mini_agentic_rl.tools.mcp_calculator import calculator_server

    nested = json.loads("[" * 200 + "]" * 200)
    odd = [None, True, 7, 1.5, -0.0, [], {}, [1], {"expression": "1"}, nested, "", "\x00", "x" * 2**20, 2**64]
    async with mcp.Client(calculator_server()) as client:
        for arguments in [{}, {"formula": "1"}, *({"expression": value} for value in odd)]:
            with attack.attempt(arguments, limit_s=LIMIT_S * 10):
                result = await client.call_tool("calculator", arguments)
                assert result.is_error
        with attack.attempt("it still answers"):
            assert (await client.call_tool("calculator", {"expression": "1 + 1"})).content[0].text == "2"
