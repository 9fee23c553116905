"""Rewards for the form of a reply, whatever it says."""

from __future__ import annotations

import re

_ANSWER_LINE = re.compile(r"^answer:[ \t]*\S", re.IGNORECASE | re.MULTILINE)
_BOXED = re.compile(r"\\boxed\s*\{\s*[^\s}]")


def has_answer_line(text: str) -> bool:
    """Whether the last line that is not empty, and only it, begins with "Answer:" and says something."""
    lines = text.strip().splitlines()
    return bool(lines) and bool(_ANSWER_LINE.match(lines[-1])) and len(_ANSWER_LINE.findall(text)) == 1


def has_boxed_answer(text: str) -> bool:
    r"""Whether the text holds exactly one \boxed{…} that is not empty."""
    return len(_BOXED.findall(text)) == 1


def has_thinking(text: str) -> bool:
    """Whether the text begins with one <think>…</think> block that is not empty and is followed by something else."""
    match = re.fullmatch(r"\s*<think>(.*?)</think>(.*)", text, re.DOTALL)
    return match is not None and all(part.strip() and "think>" not in part for part in match.groups())
