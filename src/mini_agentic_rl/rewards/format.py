"""Rewards for the format of a reply and for its length, whatever it says."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

from .base import Reward, RewardError, Sample
from .extract import MAX_TEXT

_ANSWER_LINE = re.compile(r"^answer:[ \t]*\S", re.IGNORECASE | re.MULTILINE)
TEMPLATE_TAG: Final = re.compile(r"<\|[^<>|\n]{1,40}\|>|</?(?:tool_\w+|tools|think|answer|s)>|\[/?(?:INST|TOOL_\w+)\]")
"""A word of a chat template."""
_BOXED = re.compile(r"\\boxed\s*\{\s*[^\s}]")


def has_answer_line(text: str) -> bool:
    """Return True if the last line that is not empty, and only it, begins with "Answer:" and says something."""
    lines = text.strip().splitlines()
    return bool(lines) and bool(_ANSWER_LINE.match(lines[-1])) and len(_ANSWER_LINE.findall(text)) == 1


def has_template_tags(text: str) -> bool:
    """Return True if the text holds words of a chat template, such as </tool_response>: no reply has them."""
    return bool(TEMPLATE_TAG.search(text))


def ends_cleanly(text: str) -> bool:
    """Return True if the text ends in its one line "Answer: …" and holds nothing of a chat template."""
    return has_answer_line(text) and not has_template_tags(text)


def has_boxed_answer(text: str) -> bool:
    r"""Return True if the text holds exactly one \boxed{…} that is not empty."""
    return len(_BOXED.findall(text)) == 1


def has_thinking(text: str) -> bool:
    """Return True if the text begins with one <think>…</think> block that is not empty and is followed by something
    else."""
    match = re.fullmatch(r"\s*<think>(.*?)</think>(.*)", text, re.DOTALL)
    return match is not None and all(part.strip() and "think>" not in part for part in match.groups())


FormName: TypeAlias = Literal["answer_line", "clean", "boxed", "thinking"]

_FORMS: dict[FormName, Callable[[str], bool]] = {
    "answer_line": has_answer_line,
    "clean": ends_cleanly,
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
        """Return the share of the asked-for formats that the answer has."""
        text = sample.text[-MAX_TEXT:]
        return sum(bool(check(text)) for check in self._checks) / len(self._checks)


def length_penalty(n_tokens: int, *, free: int, limit: int) -> float:
    """0 up to `free` tokens, then down in a straight line to -1 at `limit` tokens and beyond.

    The soft over-long punishment of DAPO (arXiv:2503.14476, equation 13), with `limit - free` its buffer.

    Raises:
        ValueError: unless 0 <= free < limit and n_tokens >= 0.
    """
    if not 0 <= free < limit:
        raise ValueError(f"length_penalty needs 0 <= free < limit, not free={free}, limit={limit}")
    if n_tokens < 0:
        raise ValueError(f"n_tokens must be 0 or more, not {n_tokens}")
    return -min(1.0, max(0, n_tokens - free) / (limit - free))


Unit: TypeAlias = Literal["tokens", "characters", "words"]


class LengthPenaltyReward(Reward):
    """`length_penalty` of what the model wrote: 0 up to `free`, down to `-weight` at `limit` and beyond."""

    def __init__(
        self,
        *,
        free: int,
        limit: int,
        unit: Unit = "tokens",
        weight: float = 1.0,
        count: Callable[[str], int] | None = None,
        name: str = "length",
    ) -> None:
        """`count` is the length of a text, in place of `unit`. Tokens are those of the column `completion_ids`, which
        TRL gives.

        Raises:
            ValueError: unless 0 <= free < limit.
        """
        super().__init__(name)
        length_penalty(0, free=free, limit=limit)
        self.free = free
        self.limit = limit
        self.unit = unit
        self.weight = weight
        self._count = count

    def score(self, sample: Sample) -> float | None:
        """Return the penalty, from `-weight` to 0.

        Raises:
            RewardError: tokens are to be counted, but there are none.
        """
        return self.weight * length_penalty(self._length(sample), free=self.free, limit=self.limit)

    def _length(self, sample: Sample) -> int:
        if self._count is not None:
            return self._count(sample.written)
        if self.unit == "tokens":
            ids = sample.columns.get("completion_ids")
            if ids is None:
                raise RewardError(
                    'the length in tokens needs the column "completion_ids", or `count`, or another `unit` than tokens'
                )
            return len(ids)
        return len(sample.written) if self.unit == "characters" else len(sample.written.split())
