"""Access of agents to the trained model: its endpoint, a client, and a conversation loop.

OpenAI clients share one transport per event loop. A new client costs tens of milliseconds, mostly for TLS set-up, and
opens its own connections; a copy with another base URL costs almost nothing and reuses the connections.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ..types import LLM, AttemptedRollout, NamedResources, Rollout

if TYPE_CHECKING:  # importing the SDK takes half a second
    from openai import AsyncOpenAI, BadRequestError
    from openai.types.chat import ChatCompletion
    from openai.types.chat.chat_completion import Choice

MAX_RETRIES = 1
"""Retries of a failed call. The endpoint is usually on the same machine, so more retries would not help."""

_clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncOpenAI] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def find_llm(resources: NamedResources) -> LLM:
    """Return the LLM named "llm", else the only LLM.

    Raises:
        ValueError: there is none, or there are several and none is named "llm".
    """
    llms = {name: resource for name, resource in resources.items() if isinstance(resource, LLM)}
    if "llm" in llms:
        return llms["llm"]
    if len(llms) != 1:
        raise ValueError(f'an agent needs one LLM, or one named "llm", in its resources; it got {sorted(llms)}')
    return next(iter(llms.values()))


def rollout_url(llm: LLM, rollout: Rollout) -> str:
    """Return the base URL under which the calls of this rollout's attempt are recorded."""
    if isinstance(rollout, AttemptedRollout):
        return llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
    return llm.get_base_url()


def rollout_client(llm: LLM, rollout: Rollout) -> AsyncOpenAI:
    """Return a client for the calls of one rollout, on the running event loop."""
    return shared_client(rollout_url(llm, rollout), llm.api_key)


def shared_client(base_url: str, api_key: str | None = None, *, timeout: float = 600.0) -> AsyncOpenAI:
    """Return a client for `base_url` on the running event loop; `timeout` is in seconds for one call.

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
    """Return True if a call was refused because its prompt fills the model's context."""
    return error.code == "context_length_exceeded"


Message: TypeAlias = dict[str, Any]
"""An OpenAI message."""


@dataclass(frozen=True)
class Endpoint:
    """URL, model and sampling parameters of a rollout's calls."""

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
    observe: Callable[[ChatCompletion], None] | None = None,
) -> tuple[int, Choice]:
    """Run a conversation until no message follows an answer or `max_turns` calls are made.

    A conversation that fills the model's context ends.

    Args:
        messages: the opening messages; the conversation is appended to them.
        follow: returns the messages that follow an answer; an answer that was cut off is passed as empty text.
        tools: sent with every call.
        observe: called with each completion.

    Returns:
        The number of calls and the last choice.

    Raises:
        openai.OpenAIError: the endpoint refused a call or could not be reached.
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
        if observe is not None:
            observe(completion)
        choice = completion.choices[0]
        reply = choice.message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)
        messages.append(reply)
        answer = {"role": "assistant", "content": ""} if choice.finish_reason == "length" else reply
        following = await follow(answer)
        messages += following
        if not following:
            break
    return turns, choice
