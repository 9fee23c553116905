"""What scores a batch, seen from the batcher; the model runs on one thread behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .rendering import Rendered


@dataclass(frozen=True)
class Batch:
    """Texts that go through the model together."""

    items: tuple[int, ...]
    """Their places in what was planned."""
    tokens: int
    """Tokens that are computed, padding among them."""


class Pass(Protocol):
    """One way of taking batches through a reward model."""

    def plan(self, texts: Sequence[Rendered], batch_size: int, batch_tokens: int) -> list[Batch]:
        """Put `texts` into batches of at most `batch_size` texts and `batch_tokens` tokens. A text with more tokens
        than that is alone in its batch."""
        ...

    def scores(self, texts: Sequence[Rendered]) -> list[float]:
        """Score one batch."""
        ...
