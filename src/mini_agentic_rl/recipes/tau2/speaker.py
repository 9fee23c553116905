"""One role of the conversation: a model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openai import BadRequestError, OpenAI
from openai.types.chat import ChatCompletion

from ...emitter import operation
from ...environments import outgrew_context


class EpisodeEndedError(Exception):
    """The conversation cannot continue; `reason` is an identifier, the message has the details."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ScenarioTooLongError(Exception):
    """The first call does not fit into the model's context."""


class MalformedCallError(Exception):
    """A tool call that the environment cannot run."""


@dataclass(frozen=True)
class SpeakerReply:
    """One answer of a model."""

    message: dict[str, Any]
    """The message of the model, for the next request."""
    content: str | None
    calls: Sequence[tuple[str, str, str]]
    """Tool calls as (id, name, arguments as JSON text)."""
    tokens: int
    """Length of prompt and answer."""

    @property
    def empty(self) -> bool:
        """Return True if it has neither text nor a tool call."""
        return not self.calls and not (self.content or "").strip()


class Speaker:
    """The model of one role in one episode.

    Args:
        client: client of the endpoint.
        model: name of the model.
        agent_id: name of the agent in the recorded calls.
        sampling: keyword arguments of the completion call.
    """

    def __init__(self, client: OpenAI, model: str, agent_id: str, sampling: Mapping[str, Any]) -> None:
        self.client = client
        self.model = model
        self.agent_id = agent_id
        self._sampling = dict(sampling)
        self._has_spoken = False

    def say(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> SpeakerReply:
        """Return the model's answer to `messages`.

        Raises:
            EpisodeEndedError: the conversation has outgrown the model's context (reason "context_length").
            ScenarioTooLongError: the same, before the model has said anything.
            openai.OpenAIError: any other refusal, or no answer.
        """
        request: dict[str, Any] = {"model": self.model, "messages": messages, **self._sampling}
        if tools:
            request["tools"] = tools
        whose: dict[str, Any] = {"gen_ai.agent.name": self.agent_id}
        with operation(name=self.agent_id, **whose):
            try:
                completion: ChatCompletion = self.client.chat.completions.create(**request)
            except BadRequestError as error:
                if not outgrew_context(error):
                    raise
                if self._has_spoken:
                    raise EpisodeEndedError("context_length", f"{self.agent_id}: {error.message}") from error
                raise ScenarioTooLongError(f"{self.agent_id}: {error.message}") from error
        self._has_spoken = True
        reply = completion.choices[0].message
        calls = [
            (call.id, call.function.name, call.function.arguments)
            for call in reply.tool_calls or ()
            if call.type == "function"  # only functions were offered
        ]
        usage = completion.usage
        return SpeakerReply(
            message=reply.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True),
            content=reply.content,
            calls=calls,
            tokens=usage.total_tokens if usage is not None else 0,
        )


def read_arguments(name: str, arguments: str) -> dict[str, Any]:
    """Return the arguments of a tool call.

    Raises:
        MalformedCallError: they are no JSON object, or have a power, which could keep the suite's calculator busy: it
            evaluates its expression as Python.
    """
    try:
        values = json.loads(arguments or "{}")
    except (ValueError, RecursionError) as error:
        raise MalformedCallError(f"the arguments of {name} are not valid JSON: {arguments[:200]!r}") from error
    if not isinstance(values, dict):
        raise MalformedCallError(f"the arguments of {name} are no JSON object: {arguments[:200]!r}")
    if name == "calculate" and "**" in str(values.get("expression", "")):
        raise MalformedCallError(f"calculate knows no powers: {str(values['expression'])[:200]!r}")
    return values
