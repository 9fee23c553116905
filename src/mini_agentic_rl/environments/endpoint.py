"""Access of agents to the trained model: the LLM among their resources, and a client with the rollout's own URL.

OpenAI clients share one transport per event loop. A fresh client costs tens of milliseconds, most of them for TLS
set-up, and opens connections of its own; a copy of a client with another base URL costs next to nothing and reuses the
connections.
"""

from __future__ import annotations

import asyncio
import threading
import weakref

from openai import AsyncOpenAI, BadRequestError

from ..types import LLM, AttemptedRollout, NamedResources, Rollout

MAX_RETRIES = 1
"""Retries of a failed call. The endpoint is usually on the same machine: what fails twice stays broken."""

_clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncOpenAI] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def find_llm(resources: NamedResources) -> LLM:
    """Return the LLM named "llm", else the only one there is.

    Raises:
        ValueError: there is none, or there are several and none is named "llm".
    """
    found = {name: resource for name, resource in resources.items() if isinstance(resource, LLM)}
    if "llm" in found:
        return found["llm"]
    if len(found) != 1:
        raise ValueError(f'an agent needs one LLM, or one named "llm", in its resources; it got {sorted(found)}')
    return next(iter(found.values()))


def rollout_url(llm: LLM, rollout: Rollout) -> str:
    """Return the base URL under which the calls of this rollout's attempt are recorded."""
    if isinstance(rollout, AttemptedRollout):
        return llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
    return llm.get_base_url()


def rollout_client(llm: LLM, rollout: Rollout) -> AsyncOpenAI:
    """Return a client for the calls of one rollout, on the running event loop."""
    return shared_client(rollout_url(llm, rollout), llm.api_key)


def shared_client(base_url: str, api_key: str | None = None, *, timeout: float = 600.0) -> AsyncOpenAI:
    """Return a client for `base_url` on the running event loop; `timeout` in seconds is that of one call.

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


def outgrew_context(error: BadRequestError) -> bool:
    """Return True if the call was refused because its prompt leaves no room in the model's context."""
    return error.code == "context_length_exceeded"
