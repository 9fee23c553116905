"""The end of a JSON object or list in growing text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .scanner import Step


class JsonValue:
    """A block that is one JSON object or list, from after its first bracket.

    Args:
        heads: what may follow the first bracket, white space left out, such as `"name":`; anything else is refused.
    """

    def __init__(self, heads: Sequence[str]) -> None:
        self._heads = heads
        self._head = ""
        self._depth = 1
        self._in_string = False
        self._escaped = False

    def step(self, char: str) -> Step:
        """Take the next character."""
        if self._heads and not char.isspace():
            self._head += char
            if self._head in self._heads:
                self._heads = ()
            elif not any(head.startswith(self._head) for head in self._heads):
                return Step.REFUSE
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._in_string = False
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
        return Step.ON if self._depth else Step.END


class MarkedJson:
    """A block that is one JSON object or list, from after a mark that stands before it.

    Args:
        heads: what each kind of bracket may be followed by; a bracket that is no key is refused.
    """

    def __init__(self, heads: Mapping[str, Sequence[str]]) -> None:
        self._heads = heads
        self._value: JsonValue | None = None

    def step(self, char: str) -> Step:
        """Take the next character."""
        if self._value is not None:
            return self._value.step(char)
        if char in self._heads:
            self._value = JsonValue(self._heads[char])
            return Step.ON
        return Step.ON if char.isspace() else Step.REFUSE
