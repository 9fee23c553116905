"""The helper process of `math`: for [predicted, gold] it returns whether both are equal, or their possible values.

math-verify reads log as the logarithm to base 10, programs as the natural one. So log(100) without a backslash is
compared as both.
"""

from __future__ import annotations

import logging
import re
import time
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..processes import bound_memory, serve_answers
from .values import closing_at

MEMORY_LIMIT_MIB = 4096
"""Memory beyond what is loaded: a power tower fails here and does not fill the machine."""
_DIGITS = 60
"""Decimal digits to which values are computed."""
_MAX_EXPONENT = 45
"""Values of 10 to this power and more are not compared: their last digits would be lost."""
_PLAIN_LOGARITHM = re.compile(r"(?<!\\)\blog(?=\s*\()")


def compare(predicted: str, gold: str) -> bool | list[list[str]]:
    """Return True if math-verify finds both equal, read as plain text or as LaTeX; else their possible pairs of values
    as decimals, or False if there are none."""
    from math_verify import verify

    left, right = _parsed(predicted), _parsed(gold)
    if not left or not right:
        return False
    if any(verify(one, other, timeout_seconds=None) for other in left for one in right):
        return True
    pairs = [[_value(other[0]), _value(one[0])] for other in left for one in right]
    return [[first, second] for first, second in pairs if first is not None and second is not None] or False


def _parsed(text: str) -> list[Any]:
    """Return the possible readings of an expression."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    texts = dict.fromkeys((text, _PLAIN_LOGARITHM.sub("ln", text)))
    configs = (LatexExtractionConfig(), ExprExtractionConfig())
    readings = (parse(f"${as_latex(each)}$", configs, parsing_timeout=None) for each in texts)
    return [each for each in readings if each]


def _value(expression: Any) -> str | None:
    """Return a finite real value as a decimal, an integer without a point; None if there is none."""
    import sympy

    if not isinstance(expression, sympy.Expr) or expression.free_symbols:
        return None
    value = sympy.N(expression, _DIGITS)
    if not isinstance(value, sympy.Float | sympy.Rational) or abs(value) >= sympy.Integer(10) ** _MAX_EXPONENT:
        return None
    nearest = sympy.Integer(round(value))
    return str(nearest if abs(value - nearest) < sympy.Float("1e-12") else sympy.N(value, _DIGITS))


def as_latex(text: str) -> str:
    """Convert the notation of programs, such as sqrt(12)*x**10 >= 3, to LaTeX; LaTeX is returned unchanged."""
    if "\\" in text:
        return text
    text = re.sub(r"√\s*(?:\(([^()]*)\)|(\w+))", r" sqrt(\1\2)", text)
    text = text.replace("**", "^").replace("*", r"\cdot ").replace(">=", r"\ge ").replace("<=", r"\le ")
    text = re.sub("[⁺⁻]?[⁰¹²³⁴-⁹]+", lambda high: "^" + unicodedata.normalize("NFKC", high[0]).replace("−", "-"), text)
    text = re.sub(r"\^\s*(-?\d+(?:\.\d+)?)", r"^{\1}", text)
    text = re.sub(r"(?<=\d)\s*[x×]\s*(?=\d)", r"\\cdot ", text)
    text = re.sub(r"\blog_?(\d+)(?=\s*\()", r"\\log_{\1}", text)
    text = re.sub(r"(?<!\\)\b(sqrt|pi|sin|cos|tan|log|ln|exp)\b", r"\\\1 ", text)
    while (start := text.find("\\sqrt (")) >= 0:
        opening = start + len("\\sqrt ")
        end = closing_at(text, opening, "()")
        closing = len(text) if end is None else end
        text = f"{text[:start]}\\sqrt{{{text[opening + 1 : closing]}}}{text[closing + 1 :]}"
    return text


def prepare() -> Callable[[Any], tuple[bool | list[list[str]], float]]:
    """Bound the memory of the process, import the libraries, and return `timed_answer`."""
    bound_memory(MEMORY_LIMIT_MIB)
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that it keeps no time limit
    compare("sqrt(2)", "1.5")  # imports everything that is imported on first use
    return timed_answer


def timed_answer(pair: Any) -> tuple[bool | list[list[str]], float]:
    """Return the result of `compare` for [predicted, gold], False if it fails; and the seconds that it took."""
    predicted, gold = pair
    start = time.monotonic()
    result: bool | list[list[str]] = False
    with suppress(ArithmeticError, MemoryError, RecursionError, TypeError, ValueError, AttributeError):
        result = compare(predicted, gold)
    return result, time.monotonic() - start


if __name__ == "__main__":
    serve_answers(prepare)
