"""The helper process of `symbolic`: reads one JSON pair [predicted, gold] a line, writes "true" or "false"."""

from __future__ import annotations

import json
import logging
import os
import re
import sys

MEMORY_LIMIT = 4 << 30
"""Bytes of address space, so that a power tower fails here and does not fill the machine."""


def equal(predicted: str, gold: str) -> bool:
    """Whether math-verify finds both equal, each read as plain text or as LaTeX."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    configs = (LatexExtractionConfig(), ExprExtractionConfig())
    left, right = (parse(f"${as_latex(text)}$", configs, parsing_timeout=None) for text in (predicted, gold))
    return bool(left and right and verify(right, left, timeout_seconds=None))


def as_latex(text: str) -> str:
    """An expression in the notation of programs, such as sqrt(12)*x**10 >= 3, as LaTeX; LaTeX is left as it is."""
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
    """Where the parenthesis at `opening` closes; the end of a text in which it does not."""
    depth = 0
    for at in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
    return len(text)


def serve() -> None:
    """Answers until standard input ends."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that the time limit is ours to keep
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        predicted, gold = json.loads(line)
        try:
            answer = equal(predicted, gold)
        except (ArithmeticError, MemoryError, RecursionError, TypeError, ValueError, AttributeError):
            answer = False  # what cannot be computed is not shown to be equal
        replies.write("true\n" if answer else "false\n")
        replies.flush()


if __name__ == "__main__":
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, resource.getrlimit(resource.RLIMIT_AS)[1]))
    serve()
