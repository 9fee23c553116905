"""Episodes in which the model calls tools until it answers: here they are run, a family says what they do."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from ..datasets import Message
from ..rewards import encodable
from ..tools import TextTools, use_text_tool
from .episode import Episode
from .replies import last_line

MAX_CALLS: Final = 8
"""Calls of one message that are run; the others are told so."""


class ToolEpisode(Episode):
    """Ends with the first message that calls no tool; its "Answer: …" is the answer."""

    def __init__(self, tools: TextTools) -> None:
        self._tools = tools
        self.answer: str | None = None
        self.used: list[str] = []
        """Names of the tools that were called and gave a result, in order."""
        self.results: list[str] = []
        """Results that they gave."""
        self.failed = 0
        """Number of calls that gave an error."""

    def receive(self, message: Mapping[str, Any]) -> list[Message]:
        """Run the calls of a message, or take its answer."""
        calls = message.get("tool_calls") or ()
        if not calls:
            self.answer = last_line(message)
            return []
        return [
            {"role": "tool", "tool_call_id": str(call.get("id")), "content": encodable(self._run(number, call))}
            for number, call in enumerate(calls)
        ]

    def scores(self) -> dict[str, float]:
        """Return whether the answer is right, whether there was one, and how many calls gave a result or an error."""
        return {
            "reward": float(self.answer is not None and self.is_right(self.answer)),
            "answered": float(self.answer is not None),
            "calls": float(len(self.used)),
            "failed_calls": float(self.failed),
        }

    @abstractmethod
    def is_right(self, answer: str) -> bool:
        """Return True if an answer is the right one."""

    def _run(self, number: int, call: Mapping[str, Any]) -> str:
        if number >= MAX_CALLS:
            return f"error: at most {MAX_CALLS} calls at once"
        function = call.get("function") or {}
        name = str(function.get("name"))
        result = use_text_tool(self._tools, name, function.get("arguments"))
        if result.startswith("error: "):
            self.failed += 1
        else:
            self.used.append(name)
            self.results.append(result)
        return result
