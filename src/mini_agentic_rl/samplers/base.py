"""The seam below the gateway: whatever samples tokens. Ids in, ids out, no text.

The policy of this process is one sampler; a pool of servers that return token ids is another.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ..http import BadRequestError
from ..tokens import TokenDelta, TokenRequest


class ContextLengthError(BadRequestError):
    """The prompt leaves no room for a continuation."""

    def __init__(self, prompt_tokens: int, limit: int) -> None:
        super().__init__(
            f"This model's maximum context length is {limit} tokens, but the messages have {prompt_tokens} tokens. "
            "Shorten the messages, or serve a model with a longer context.",
            param="messages",
            code="context_length_exceeded",
        )
        self.prompt_tokens = prompt_tokens
        self.limit = limit


@dataclass(frozen=True)
class SamplerLoad:
    """Load of a sampler; a mapping is empty where it cannot tell."""

    sequences: Mapping[str, float] = field(default_factory=dict)
    """Continuations `running` and `waiting`."""
    kv_blocks: Mapping[str, float] = field(default_factory=dict)
    """Blocks of the key/value cache: `used` by continuations under way, `idle` (kept for reuse), `free`."""


class Sampler(Protocol):
    """Samples continuations. `complete` and `load` are used from the gateway's event loop, the others from any."""

    @property
    def model_names(self) -> Sequence[str]:
        """Names that requests may ask for: the base model first, then one name for each LoRA adapter."""

    @property
    def context_length(self) -> int:
        """The most tokens that a prompt and its continuation may have together."""

    @property
    def sampled_tokens(self) -> int:
        """Tokens sampled so far."""

    def load(self) -> SamplerLoad:
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

    async def publish(self, adapter: str, version: int, save: Callable[[Path], None]) -> None:
        """Sample requests for `adapter` that begin from now on with its weights of this version.

        Those under way end with the weights that they began with, where the sampler has weights of its own.

        Args:
            adapter: name of the adapter, or of the whole model where that is trained in full.
            version: optimizer steps behind its weights.
            save: writes them into a folder; it blocks, and is called where the sampler needs them.
        """

    def close(self) -> None:
        """End what it has started; blocks until that has ended. It does not close a policy."""
