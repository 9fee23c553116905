"""A socket in the file system behind which the gateway is: the only way out of a sandbox without a network."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

_CHUNK: Final = 1 << 16


@asynccontextmanager
async def relay(path: Path, gateway: tuple[str, int]) -> AsyncIterator[None]:
    """Carry connections to the socket `path` to the gateway, as long as the block lasts."""
    running: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            with contextlib.suppress(OSError):  # the gateway has gone, which the command sees by its connection
                outward, inward = await asyncio.open_connection(*gateway)
                try:
                    await asyncio.gather(_copy(reader, inward), _copy(outward, writer))
                finally:
                    inward.close()
        finally:
            writer.close()
            running.discard(task)

    server = await asyncio.start_unix_server(carry, str(path))
    await asyncio.to_thread(
        path.chmod, 0o666
    )  # a container may run its command as somebody else; the folder above is this user's
    try:
        yield
    finally:
        server.close()
        for task in list(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:  # one side has gone: the other is to notice
        writer.close()
