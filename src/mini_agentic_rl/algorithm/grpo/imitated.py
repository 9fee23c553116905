"""Tokens that a step imitates beside its policy gradient, whoever wrote them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...tokens import CompletionRecord

Kind = Literal["echo", "sft"]


@dataclass(frozen=True)
class Imitated:
    """A run of tokens in its context, as the record of a call that would have sampled it."""

    record: CompletionRecord
    weight: float
    """Weight of each of its tokens in the loss: coefficient and normalisation."""
    kind: Kind
    """Source of the tokens: the environment (`echo`), or a demonstration (`sft`)."""
