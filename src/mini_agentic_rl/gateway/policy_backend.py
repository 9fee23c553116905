"""The gateway's backend in this process: the policy's engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from ..policy import Engine, PolicyError, PromptTooLongError, QueueFullError
from ..tokens import TokenDelta, TokenRequest
from .errors import BadRequestError, ContextLengthError, OverloadedError


class PolicyBackend:
    """Hands requests to the engine's thread and its answers back to the gateway's event loop.

    Args:
        engine: samples the tokens.
        base_name: name under which the model without an adapter can be asked for.
        adapters: names of the LoRA adapters.
        context_length: the most tokens that a prompt and its continuation may have together.
    """

    def __init__(self, engine: Engine, *, base_name: str, adapters: Sequence[str], context_length: int) -> None:
        self._engine = engine
        self._names = (base_name, *adapters)
        self._context_length = context_length

    @property
    def model_names(self) -> Sequence[str]:
        return self._names

    @property
    def context_length(self) -> int:
        return self._context_length

    async def complete(self, request: TokenRequest) -> AsyncGenerator[TokenDelta, None]:
        """See `Backend.complete`."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[TokenDelta] = asyncio.Queue()

        def on_delta(delta: TokenDelta) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(queue.put_nowait, delta)

        try:
            sequence = self._engine.submit(request, on_delta)
        except PromptTooLongError as error:
            raise ContextLengthError(error.prompt_tokens, error.limit) from error
        except QueueFullError as error:
            raise OverloadedError(f"The server is busy: {error}. Try again shortly.") from error
        except PolicyError as error:
            raise BadRequestError(str(error)) from error
        finished = False
        try:
            while not finished:
                delta = await queue.get()
                finished = delta.finish_reason is not None
                yield delta
        finally:
            if not finished:
                self._engine.cancel(sequence)
