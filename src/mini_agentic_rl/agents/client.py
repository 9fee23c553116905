"""OpenAI clients that share one transport per event loop.

A fresh client costs tens of milliseconds, most of them for TLS set-up, and opens connections of its own; a copy of a
client with another base URL costs next to nothing and reuses the connections. Each rollout has its own base URL.
"""

from __future__ import annotations

import asyncio
import threading
import weakref

from openai import AsyncOpenAI

MAX_RETRIES = 1
"""Retries of a failed call. The endpoint is usually on the same machine: what fails twice stays broken."""

_clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncOpenAI] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def shared_client(base_url: str, api_key: str | None = None, *, timeout: float = 600.0) -> AsyncOpenAI:
    """A client for `base_url` on the running event loop; `timeout` in seconds is that of one call.

    Raises:
        RuntimeError: no event loop is running.
    """
    loop = asyncio.get_running_loop()
    with _lock:
        client = _clients.get(loop)
        if client is None:
            client = AsyncOpenAI(base_url=base_url, api_key=api_key or "none", max_retries=MAX_RETRIES)
            _clients[loop] = client
    return client.with_options(base_url=base_url, api_key=api_key or "none", timeout=timeout)
