"""The seam below the gateway: whatever samples tokens. Ids in, ids out, no text.

The in-process policy is one backend; an upstream server that returns token ids can be another.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ...tokens import TokenDelta, TokenRequest


@dataclass(frozen=True)
class BackendLoad:
    """Load of a backend; a mapping is empty where it cannot tell."""

    sequences: Mapping[str, float] = field(default_factory=dict)
    """Continuations `running` and `waiting`."""
    kv_blocks: Mapping[str, float] = field(default_factory=dict)
    """Blocks of the key/value cache: `used` by continuations under way, `idle` (kept for reuse), `free`."""


class Backend(Protocol):
    """Samples continuations. All members are used from the gateway's event loop only."""

    @property
    def model_names(self) -> Sequence[str]:
        """Names that requests may ask for: the base model first, then one name for each LoRA adapter."""

    @property
    def context_length(self) -> int:
        """The most tokens that a prompt and its continuation may have together."""

    def load(self) -> BackendLoad:
        """Return how busy it is at the moment."""

    def complete(self, request: TokenRequest) -> AsyncGenerator[TokenDelta, None]:
        """Sample one continuation of `request.prompt_ids`.

        Yields deltas in order, as often as `request.delivery` asks for; the last one carries the finish reason.
        `aclose()` on the generator (or cancelling the task that iterates over it) cancels the sampling and frees what
        it held. Any number may run at once.

        Raises:
            ContextLengthError: the prompt leaves no room for a continuation.
            OverloadedError: no more requests are taken at the moment.
        """
