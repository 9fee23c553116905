"""The helper process of `symbolic`: asked [predicted, gold], it answers whether both are equal."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from typing import Any

from ..deadline_process import serve_answers

MEMORY_LIMIT = 4 << 30
"""Bytes of address space, so that a power tower fails here and does not fill the machine."""


def equal(predicted: str, gold: str) -> bool:
    """Return True if math-verify finds both equal, each read as plain text or as LaTeX."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    configs = (LatexExtractionConfig(), ExprExtractionConfig())
    left, right = (parse(f"${as_latex(text)}$", configs, parsing_timeout=None) for text in (predicted, gold))
    return bool(left and right and verify(right, left, timeout_seconds=None))


def as_latex(text: str) -> str:
    """Return an expression as programs write it, such as sqrt(12)*x**10 >= 3, as LaTeX; LaTeX is left as it is."""
    if "\\" in text:
        return text
    text = text.replace("**", "^").replace("*", r"\cdot ").replace(">=", r"\ge ").replace("<=", r"\le ")
    text = re.sub(r"\^\s*(-?\d+)", r"^{\1}", text)
    text = re.sub(r"\b(sqrt|pi|sin|cos|tan|log|ln|exp)\b", r"\\\1 ", text)
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


def prepare() -> Callable[[Any], bool]:
    """Bound the memory of the process, and load what compares."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, resource.getrlimit(resource.RLIMIT_AS)[1]))
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that the time limit is ours to keep
    equal("1", "1")  # what is imported on first use is imported now
    return answer


def answer(pair: Any) -> bool:
    """Return True if [predicted, gold] are equal; what cannot be computed is not shown to be."""
    predicted, gold = pair
    try:
        return equal(predicted, gold)
    except (ArithmeticError, MemoryError, RecursionError, TypeError, ValueError, AttributeError):
        return False


if __name__ == "__main__":
    serve_answers(prepare)
