"""Access of agents to the trained model: its endpoint, a client for it, and the conversation with an environment.

OpenAI clients share one transport per event loop. A fresh client costs tens of milliseconds, most of them for TLS
set-up, and opens its own connections; a copy with another base URL is nearly free and reuses the connections.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ..types import LLM, AttemptedRollout, NamedResources, Rollout

if TYPE_CHECKING:  # the SDK takes half a second to import, which `--help` does not wait for
    from openai import AsyncOpenAI, BadRequestError
    from openai.types.chat.chat_completion import Choice

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
    from openai import AsyncOpenAI

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


Message: TypeAlias = dict[str, Any]
"""An OpenAI message."""


@dataclass(frozen=True)
class Endpoint:
    """The address where a rollout's model answers, and the settings that its calls are sampled with."""

    base_url: str
    model: str
    api_key: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)


def endpoint_of(llm: LLM, rollout: Rollout) -> Endpoint:
    """Return the endpoint of a rollout."""
    return Endpoint(rollout_url(llm, rollout), llm.model, llm.api_key, llm.sampling_parameters)


async def converse(
    endpoint: Endpoint,
    messages: list[Message],
    follow: Callable[[Message], Awaitable[Sequence[Message]]],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    max_turns: int,
) -> tuple[int, Choice]:
    """Let the model talk until nothing follows or `max_turns` calls are made, and return the number of calls and the
    last choice.

    Args:
        messages: the opening, which the conversation is added to. Nothing in it is changed later.
        follow: takes an answer and returns the messages that follow it; an answer that was cut off counts as one
            without a word.
        tools: sent with every call.

    Raises:
        openai.OpenAIError: the endpoint refused a call or could not be reached; a conversation that has outgrown the
            model's context ends instead.
    """
    from openai import BadRequestError

    client = shared_client(endpoint.base_url, endpoint.api_key)
    sampling = {"tools": list(tools), **endpoint.sampling} if tools else endpoint.sampling
    turns = 0
    while turns < max_turns:
        try:
            completion = await client.chat.completions.create(
                model=endpoint.model, messages=cast(Any, messages), **cast(Any, sampling)
            )
        except BadRequestError as error:
            if turns == 0 or not outgrew_context(error):
                raise
            break
        turns += 1
        choice = completion.choices[0]
        reply = choice.message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)
        messages.append(reply)
        heard = {"role": "assistant", "content": ""} if choice.finish_reason == "length" else reply
        follows = await follow(heard)
        messages += follows
        if not follows:
            break
    return turns, choice
