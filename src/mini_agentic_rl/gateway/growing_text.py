"""Text that grows by small pieces, in time that is proportional to its length."""

from __future__ import annotations


class GrowingText:
    """Text as it arrives; `str` gives what there is by now.

    Adding to a `str` that is kept somewhere copies the whole each time.
    """

    def __init__(self, begun: str = "") -> None:
        self._pieces = [begun] if begun else []

    def add(self, piece: str) -> None:
        """Add text at the end."""
        if piece:
            self._pieces.append(piece)

    def __str__(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""
