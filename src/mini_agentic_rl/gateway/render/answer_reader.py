"""Reads the text of one answer: its thought first, then content and tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ..tool_formats import Scanner, ToolCall
from .thinking import Thought, ThoughtScanner

Piece: TypeAlias = str | ToolCall | Thought
"""A stretch of content, a call, or a stretch of the thought."""


class AnswerReader:
    """Splits a growing answer. The pieces, neighbours of one kind joined, do not depend on how it was cut up.

    Args:
        thoughts: splits off the thought; None where there is none to be read.
        calls: finds tool calls in what is left; None where none are to be read.
    """

    def __init__(self, thoughts: ThoughtScanner | None = None, calls: Scanner | None = None) -> None:
        self._thoughts = thoughts
        self._calls = calls

    @property
    def thought_found(self) -> bool:
        """Whether the answer has a thought, be it empty."""
        return self._thoughts is not None and self._thoughts.found

    def feed(self, text: str) -> list[Piece]:
        """The pieces that are certain once `text` has been added."""
        return self._with_calls([text] if self._thoughts is None else self._thoughts.feed(text))

    def finish(self) -> list[Piece]:
        """The rest, when the answer has ended."""
        pieces = [] if self._thoughts is None else self._with_calls(self._thoughts.finish())
        return pieces if self._calls is None else [*pieces, *self._calls.finish()]

    def _with_calls(self, parts: Sequence[Thought | str]) -> list[Piece]:
        if self._calls is None:
            return list(parts)
        pieces: list[Piece] = []
        for part in parts:
            pieces += [part] if isinstance(part, Thought) else self._calls.feed(part)
        return pieces
