"""Readers of an answer in a task with turns: any text is read or refused, and what is read is what stands there."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_agentic_rl.environments.episode import MAX_ANSWER, ToolEpisode, last_line, number_of, plain
from mini_agentic_rl.recipes.games.countdown import value_of
from mini_agentic_rl.rewards import in_ascii_numbers

NUMBERS = st.lists(st.integers(1, 99), min_size=2, max_size=6)
NEARLY = st.text("0123456789+-*/()., \n\t_eEjJxXaif%~^&|<>=١½－", max_size=120) | st.text(max_size=300)


@st.composite
def expressions(draw: st.DrawFn) -> tuple[str, Fraction | None, list[int]]:
    """An expression over all of some numbers, its value, and the numbers."""
    numbers = draw(NUMBERS)
    parts: list[tuple[str, Fraction | None]] = [(str(number), Fraction(number)) for number in numbers]
    while len(parts) > 1:
        (one, left), (other, right) = parts.pop(), parts.pop()
        symbol = draw(st.sampled_from("+-*/"))
        value = None
        if left is not None and right is not None and (symbol != "/" or right):
            value = {"+": left.__add__, "-": left.__sub__, "*": left.__mul__, "/": left.__truediv__}[symbol](right)
        parts.insert(draw(st.integers(0, len(parts))), (f"({one}{symbol}{other})", value))
    return parts[0][0], parts[0][1], numbers


@given(expressions())
def test_an_expression_has_its_exact_value(drawn: tuple[str, Fraction | None, list[int]]) -> None:
    text, value, numbers = drawn
    assert value_of(text, numbers) == value
    assert value_of(text, numbers[1:]) is None  # one more number than there is


@given(NEARLY, NUMBERS)
def test_any_text_has_a_value_or_none(text: str, numbers: list[int]) -> None:
    value = value_of(text, numbers)
    assert value is None or isinstance(value, Fraction)


@given(NEARLY)
@settings(max_examples=300)
def test_any_text_is_a_number_or_none(text: str) -> None:
    said = number_of(text)
    if said is not None:
        assert text.isascii() or said.isascii()
        assert len(said) <= MAX_ANSWER
        assert abs(Fraction(said)) < 10**200
        assert in_ascii_numbers(text).replace(",", "").startswith(said)
    assert plain(plain(text)) == plain(text) or plain(text).endswith(".")  # one full stop at the end is no part of it


@given(st.lists(NEARLY | NEARLY.map(lambda text: f"Answer: {text}"), max_size=4).map("\n".join))
def test_an_answer_is_the_end_of_what_was_said(text: str) -> None:
    found = last_line({"role": "assistant", "content": text})
    if found is not None:
        assert 0 < len(found) <= MAX_ANSWER
        assert "\n" not in found
        assert text.rstrip("\n").rstrip().endswith(found)


class Echo(ToolEpisode):
    """Says back what it is told."""

    def is_right(self, answer: str) -> bool:
        return True

    def expert(self) -> dict[str, object]:
        return {}


@pytest.mark.parametrize("arguments", ['{"a": "\\ud800"}', '{"a": 1e999}', None, 5, {"a": "x"}, "[" * 5000])
def test_the_result_of_a_tool_can_be_sent_whatever_it_was_given(arguments: object) -> None:
    episode = Echo({"echo": ("a", lambda text: text)})
    for name in ("echo", "\ud800", None):
        call = {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}
        (reply,) = episode.receive({"role": "assistant", "content": None, "tool_calls": [call]})
        assert isinstance(reply["content"], str)
        reply["content"].encode()
