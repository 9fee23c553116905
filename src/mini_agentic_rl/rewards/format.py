"""Rewards for the form of a reply, whatever it says."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, TypeAlias

from .base import Reward
from .extract import MAX_TEXT
from .samples import Sample

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


FormName: TypeAlias = Literal["answer_line", "boxed", "thinking"]

_FORMS: dict[FormName, Callable[[str], bool]] = {
    "answer_line": has_answer_line,
    "boxed": has_boxed_answer,
    "thinking": has_thinking,
}


class FormatReward(Reward):
    """The share of the asked-for forms that the final answer has, whatever it says; from 0 to 1."""

    def __init__(self, *forms: FormName | Callable[[str], bool], name: str = "format") -> None:
        """`forms` are names of `FormName`, or functions of the text; by default an answer line.

        Raises:
            ValueError: an unknown name.
        """
        super().__init__(name)
        unknown = [form for form in forms if isinstance(form, str) and form not in _FORMS]
        if unknown:
            raise ValueError(f"form must be one of {', '.join(_FORMS)}, or a function of the text, not {unknown[0]!r}")
        self._checks = [_FORMS[form] if isinstance(form, str) else form for form in forms or ("answer_line",)]

    def score(self, sample: Sample) -> float | None:
        """The share."""
        text = sample.text[-MAX_TEXT:]
        return sum(bool(check(text)) for check in self._checks) / len(self._checks)
