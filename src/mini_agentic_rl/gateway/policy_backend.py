"""The gateway's backend in this process: the policy's engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from itertools import chain

from ..policy import Engine, PolicyError, PromptTooLongError, QueueFullError
from ..tokens import TokenDelta, TokenRequest
from .backend import BackendLoad
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

    def load(self) -> BackendLoad:
        """See `Backend.load`."""
        running, waiting = self._engine.load
        cache = self._engine.cache
        idle, available = cache.idle, cache.available
        return BackendLoad(
            sequences={"running": running, "waiting": waiting},
            kv_blocks={"used": cache.total - available, "idle": idle, "free": available - idle},
        )

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
                deltas = [await queue.get()]
                while not queue.empty():  # what came faster than it was read goes on together: one event, not many
                    deltas.append(queue.get_nowait())
                delta = deltas[0] if len(deltas) == 1 else _joined(deltas)
                finished = delta.finish_reason is not None
                yield delta
        finally:
            if not finished:
                self._engine.cancel(sequence)


def _joined(deltas: Sequence[TokenDelta]) -> TokenDelta:
    first, last = deltas[0], deltas[-1]
    forced: tuple[bool, ...] = ()
    if any(delta.forced for delta in deltas):
        forced = tuple(chain.from_iterable(delta.forced or (False,) * len(delta.token_ids) for delta in deltas))
    return TokenDelta(
        token_ids=tuple(chain.from_iterable(delta.token_ids for delta in deltas)),
        logprobs=tuple(chain.from_iterable(delta.logprobs for delta in deltas)),
        top_logprobs=tuple(chain.from_iterable(delta.top_logprobs for delta in deltas)),
        forced=forced,
        finish_reason=last.finish_reason,
        version=first.version,
        cached_tokens=first.cached_tokens,
        failure=last.failure,
    )
