"""One server of the pool: what it has loaded, how busy it is, and whether it is well."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

from ..parity import Parity
from ..wire import Facts, Generation, ReplicaLostError, TokenChunk, Wire

logger = logging.getLogger(__name__)


_LOOK_SECONDS: Final = 1.0
"""Between two looks at a server that does not answer yet."""
_TOLD_SECONDS: Final = 15.0
"""Between two notes of one."""


class StartedServer(Protocol):
    """A server that the pool has started itself."""

    @property
    def url(self) -> str:
        """Its address, which may be another one after a restart."""

    def restart(self) -> None:
        """Start it again if its process has ended, or has been up for long without being well. Blocks for a moment.

        Raises:
            UserError: it has ended too often.
        """


class Replica:
    """A server. Used from the pool's event loop only.

    Args:
        url: its address, for messages.
        wire: speaks with it.
        server: its process, where the pool has started it.
    """

    def __init__(self, url: str, wire: Wire, server: StartedServer | None = None) -> None:
        self.url = url
        self.wire = wire
        self.server = server
        self.facts = Facts("", "", 0)
        self.well = False
        self.loaded: set[str] = set()
        """Names of the weights that it has."""
        self.parity: Parity | None = None
        """Its last comparison with the learner."""
        self.under_way = 0
        """Requests that it is answering."""
        self.lost_times = 0
        """Number of times that it was taken out."""
        self._readers: set[asyncio.Task[None]] = set()
        self._last_token = 0.0
        self._reason = ""

    async def sample(self, generation: Generation, on_chunk: Callable[[TokenChunk], None], silence: float) -> None:
        """Sample a continuation; `on_chunk` is called with all that comes, the finish reason last.

        Args:
            silence: seconds without a token of any answer here after which the server is taken for hung.

        Raises:
            ReplicaLostError: the server was lost on the way.
            RequestRefusedError: the server refuses the request.
        """
        if not self.under_way:
            self._last_token = time.monotonic()
        self.under_way += 1
        reader = asyncio.create_task(self._read(generation, on_chunk))
        self._readers.add(reader)
        try:
            while not reader.done():
                await asyncio.wait({reader}, timeout=silence)
                if not reader.done() and time.monotonic() - self._last_token >= silence:
                    raise ReplicaLostError(f"no token for {silence:.0f} seconds")
            if reader.cancelled():
                raise ReplicaLostError(self._reason)
            reader.result()
        finally:
            self._readers.discard(reader)
            self.under_way -= 1
            if not reader.done():
                reader.cancel()
                await asyncio.gather(reader, return_exceptions=True)

    async def _read(self, generation: Generation, on_chunk: Callable[[TokenChunk], None]) -> None:
        stream = self.wire.stream(generation)
        try:
            async for chunk in stream:
                self._last_token = time.monotonic()
                on_chunk(chunk)
        finally:
            await stream.aclose()

    def move(self, url: str) -> None:
        """Ask at another address from now on, where the server was started again elsewhere. It is not well then."""
        self.url = url
        self.wire.client.base_url = url

    def lose(self, reason: str) -> None:
        """Take the server out; its answers go on elsewhere."""
        if self.well:
            logger.warning("the sampler %s is taken out: %s", self.url, reason)
            self.lost_times += 1
        self.well = False
        self._reason = reason
        for reader in list(self._readers):
            reader.cancel()


async def reached(replica: Replica, end: float, note: Callable[[str], None]) -> Facts:
    """Return what a server says of itself, once it answers.

    Args:
        end: time of the steady clock until which it may come up.
        note: told now and then of what is waited for.

    Raises:
        ReplicaLostError: it does not answer.
        RequestRefusedError: it is no such server.
    """
    told = -_TOLD_SECONDS
    while True:
        try:
            return await replica.wire.facts()
        except ReplicaLostError as error:
            now = time.monotonic()
            if now >= end:
                raise
            if now - told >= _TOLD_SECONDS:
                told = now
                note(f"waiting for the sampler {replica.url}, {end - now:.0f} s at most (`sampler_wait`): {error}")
        await asyncio.sleep(min(_LOOK_SECONDS, max(0.0, end - time.monotonic())))
