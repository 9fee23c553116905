"""The policy of this process as a sampler: its engine's tokens on their way to the gateway's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path

from ..http import BadRequestError, OverloadedError
from ..policy import Engine, PolicyError, PromptTooLongError, QueueFullError
from ..tokens import TokenDelta, TokenRequest
from .base import ContextLengthError, SamplerLoad
from .hand_over import HandOver


class PolicySampler:
    """Hands requests to the engine's thread and its answers back to the gateway's event loop.

    Args:
        engine: samples the tokens.
        base_name: name under which the model without an adapter can be asked for.
        adapters: names of the LoRA adapters.
        context_length: the most tokens that a prompt and its continuation may have together.
    """

    def __init__(self, engine: Engine, *, base_name: str, adapters: Sequence[str], context_length: int) -> None:
        self._engine = engine
        self.model_names = (base_name, *adapters)
        self.context_length = context_length
        self._hand_over: HandOver | None = None

    @property
    def sampled_tokens(self) -> int:
        """See `Sampler.sampled_tokens`."""
        return self._engine.sampled_tokens

    def load(self) -> SamplerLoad:
        """See `Sampler.load`."""
        running, waiting = self._engine.sequence_counts
        cache = self._engine.cache
        idle, available = cache.idle, cache.available
        return SamplerLoad(
            sequences={"running": running, "waiting": waiting},
            kv_blocks={"used": cache.total - available, "idle": idle, "free": available - idle},
        )

    async def complete(self, request: TokenRequest) -> AsyncGenerator[TokenDelta, None]:
        """See `Sampler.complete`."""
        inbox = self._reached().open(joined=request.delivery == "joined")
        try:
            sequence = self._engine.submit(request, inbox.post)
        except PromptTooLongError as error:
            raise ContextLengthError(error.prompt_tokens, error.limit) from error
        except QueueFullError as error:
            raise OverloadedError(f"The server is busy: {error}. Try again shortly.") from error
        except PolicyError as error:
            raise BadRequestError(str(error)) from error
        finished = False
        try:
            while not finished:
                delta = await inbox.get()
                finished = delta.finish_reason is not None
                yield delta
        finally:
            inbox.close()
            if not finished:
                self._engine.cancel(sequence)

    async def publish(self, adapter: str, version: int, save: Callable[[Path], None]) -> None:
        """Do nothing: the engine samples with the weights that are learnt."""

    def close(self) -> None:
        """Do nothing: the engine ends with its policy."""

    def _reached(self) -> HandOver:
        """Return the hand-over to the running event loop; a server that is started again has a new loop."""
        loop = asyncio.get_running_loop()
        if self._hand_over is None or self._hand_over.loop is not loop:
            self._hand_over = HandOver(loop)
        return self._hand_over
