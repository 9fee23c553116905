"""The helper process of `symbolic`: asked [predicted, gold], it answers whether both are equal, or with their values.

math-verify reads log as the logarithm to base 10, programs as the natural one. Written as programs write it, log(100)
may be either.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import Any

from ..processes import bound_memory, serve_answers

MEMORY_LIMIT_MIB = 4096
"""Memory beyond what is loaded: a power tower fails here and does not fill the machine."""


_DIGITS = 60
"""Decimal digits to which values are computed."""
_MAX_EXPONENT = 45
"""Values from 10 to the power of this on are not compared: their last digits would be lost."""
_PLAIN_LOGARITHM = re.compile(r"(?<!\\)\blog(?=\s*\()")


def compare(predicted: str, gold: str) -> bool | list[list[str]]:
    """Return True if math-verify finds both equal, each read as plain text or as LaTeX; else the pairs of values that
    they may have, as decimals, or False where they have none."""
    from math_verify import verify

    left, right = _parsed(predicted), _parsed(gold)
    if not left or not right:
        return False
    if any(verify(one, other, timeout_seconds=None) for other in left for one in right):
        return True
    pairs = [[_value(other[0]), _value(one[0])] for other in left for one in right]
    return [[first, second] for first, second in pairs if first is not None and second is not None] or False


def _parsed(text: str) -> list[Any]:
    """Return what an expression may mean."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    texts = dict.fromkeys((text, _PLAIN_LOGARITHM.sub("ln", text)))
    configs = (LatexExtractionConfig(), ExprExtractionConfig())
    found = (parse(f"${as_latex(each)}$", configs, parsing_timeout=None) for each in texts)
    return [each for each in found if each]


def _value(expression: Any) -> str | None:
    """Return a finite real value as a decimal, one that is an integer without a point; None where there is none."""
    import sympy

    if not isinstance(expression, sympy.Expr) or expression.free_symbols:
        return None
    value = sympy.N(expression, _DIGITS)
    if not isinstance(value, sympy.Float | sympy.Rational) or abs(value) >= sympy.Integer(10) ** _MAX_EXPONENT:
        return None
    nearest = sympy.Integer(round(value))
    return str(nearest if abs(value - nearest) < sympy.Float("1e-12") else sympy.N(value, _DIGITS))


def as_latex(text: str) -> str:
    """Return an expression as programs write it, such as sqrt(12)*x**10 >= 3, as LaTeX; LaTeX is left as it is."""
    if "\\" in text:
        return text
    text = re.sub(r"√\s*(?:\(([^()]*)\)|(\w+))", r" sqrt(\1\2)", text)
    text = text.replace("**", "^").replace("*", r"\cdot ").replace(">=", r"\ge ").replace("<=", r"\le ")
    text = re.sub(r"\^\s*(-?\d+)", r"^{\1}", text)
    text = re.sub(r"(?<=\d)\s*[x×]\s*(?=\d)", r"\\cdot ", text)
    text = re.sub(r"\blog_?(\d+)(?=\s*\()", r"\\log_{\1}", text)
    text = re.sub(r"(?<!\\)\b(sqrt|pi|sin|cos|tan|log|ln|exp)\b", r"\\\1 ", text)
    while (start := text.find("\\sqrt (")) >= 0:
        opening = start + len("\\sqrt ")
        closing = _closing(text, opening)
        text = f"{text[:start]}\\sqrt{{{text[opening + 1 : closing]}}}{text[closing + 1 :]}"
    return text


def _closing(text: str, opening: int) -> int:
    """Return the index at which the parenthesis at `opening` closes; the end of a text in which it does not."""
    depth = 0
    for at in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
    return len(text)


def prepare() -> Callable[[Any], tuple[bool | list[list[str]], float]]:
    """Bound the memory of the process, and load what compares."""
    bound_memory(MEMORY_LIMIT_MIB)
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that the time limit is ours to keep
    compare("sqrt(2)", "1.5")  # what is imported on first use is imported now
    return timed_answer


def timed_answer(pair: Any) -> tuple[bool | list[list[str]], float]:
    """Return an answer and the seconds that it took."""
    began = time.monotonic()
    return answer(pair), time.monotonic() - began


def answer(pair: Any) -> bool | list[list[str]]:
    """Return what `compare` finds of [predicted, gold]; what cannot be computed is not shown to be equal."""
    predicted, gold = pair
    try:
        return compare(predicted, gold)
    except (ArithmeticError, MemoryError, RecursionError, TypeError, ValueError, AttributeError):
        return False


if __name__ == "__main__":
    serve_answers(prepare)
