"""The conversation of a model, at its endpoint, with a world: the model answers, the world says what follows, until
nothing follows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from openai import BadRequestError
from openai.types.chat.chat_completion import Choice

from ..types import LLM, Rollout
from .endpoint import outgrew_context, rollout_url, shared_client

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
