"""The two roles of a conversation: the assistant, which is trained, and the customer, which stays as it is.

The assistant is the suite's LLM agent with answers from our endpoint. Its requests only ever grow at the end, by what
was answered and what came back, so that each call's prompt begins with the prompt and the output of the call before it.
The customer is the suite's user simulator on a model of its own. In telecom it has tools too (a phone to look at and to
switch things on).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .speaker import EpisodeEndedError, MalformedCallError, Speaker, read_arguments
from .suite import (
    AssistantMessage,
    LLMAgent,
    MultiToolMessage,
    ToolCall,
    UserMessage,
    UserSimulator,
    to_litellm_messages,
)

MAX_TRIES = 4
"""Calls until a user that says nothing is given up, as in the suite."""

Messages = list[dict[str, Any]]


class Assistant(LLMAgent):  # type: ignore[misc]  # the package has no types
    """Answers customers and calls the domain's tools; its state is the list of messages that it sends.

    Args:
        tools: of the environment.
        domain_policy: the rules of the domain, the better part of the system prompt.
        speaker: the model.
        max_tokens: the most tokens that the conversation may grow to, policy and tools included; None is no bound but
            the model's context.
    """

    def __init__(self, tools: Sequence[Any], domain_policy: str, speaker: Speaker, max_tokens: int | None) -> None:
        super().__init__(tools=list(tools), domain_policy=domain_policy)
        self._speaker = speaker
        self._max_tokens = max_tokens
        self._schemas = [tool.openai_schema for tool in tools]

    def get_init_state(self, message_history: Sequence[Any] | None = None) -> Messages:
        """Return the system prompt, and the messages that the task begins with."""
        return [{"role": "system", "content": self.system_prompt}, *to_litellm_messages(message_history or [])]

    def generate_next_message(self, message: Any, state: Messages) -> tuple[Any, Messages]:
        """Return the answer to the customer or to the results of tool calls.

        Raises:
            EpisodeEndedError: the model said nothing or made a malformed call ("agent_error"), or the conversation
                is longer than `max_tokens` ("max_tokens") or than the model's context ("context_length").
            ScenarioTooLongError: policy and tools alone do not fit into the model's context.
        """
        state.extend(to_litellm_messages(message.tool_messages if isinstance(message, MultiToolMessage) else [message]))
        said = self._speaker.say(state, self._schemas)
        state.append(said.message)
        if said.empty:
            raise EpisodeEndedError("agent_error", "the assistant said nothing")
        if self._max_tokens is not None and said.tokens > self._max_tokens:
            raise EpisodeEndedError(
                "max_tokens", f"the conversation has {said.tokens} tokens, more than max_tokens={self._max_tokens}"
            )
        try:
            calls = [
                ToolCall(id=id_, name=name, arguments=read_arguments(name, text)) for id_, name, text in said.calls
            ]
        except MalformedCallError as error:
            raise EpisodeEndedError("agent_error", str(error)) from error
        return AssistantMessage(role="assistant", content=said.content, tool_calls=calls or None), state


class UserSimulatorError(Exception):
    """The user simulator gave nothing to go on with: no fault of the assistant, so the rollout has failed."""


class SimulatedUser(UserSimulator):  # type: ignore[misc]  # the package has no types
    """Plays the customer of a task.

    Args:
        tools: what the user may call; None without any.
        instructions: the scenario of the task.
        speaker: the model.
    """

    def __init__(self, tools: Sequence[Any] | None, instructions: str, speaker: Speaker) -> None:
        super().__init__(tools=None if tools is None else list(tools), instructions=instructions)
        self._speaker = speaker
        self._schemas = [tool.openai_schema for tool in tools or ()]

    def generate_next_message(self, message: Any, state: Any) -> tuple[Any, Any]:
        """Return the user's message to the assistant, or its tool calls.

        Raises:
            UserSimulatorError: it said nothing, or made a malformed call.
            EpisodeEndedError: the conversation has outgrown the user's context ("context_length").
            ScenarioTooLongError: not even the scenario fits into it.
        """
        state.messages.extend(message.tool_messages if isinstance(message, MultiToolMessage) else [message])
        messages = to_litellm_messages(state.system_messages + state.flip_roles())
        for _ in range(MAX_TRIES):
            said = self._speaker.say(messages, self._schemas)
            if not said.empty:
                break
        else:
            raise UserSimulatorError(f"the user simulator ({self._speaker.model}) said nothing, {MAX_TRIES} times")
        try:
            calls = [
                ToolCall(id=id_, name=name, arguments=read_arguments(name, text), requestor="user")
                for id_, name, text in said.calls
            ]
        except MalformedCallError as error:
            raise UserSimulatorError(f"the user simulator ({self._speaker.model}): {error}") from error
        answer = UserMessage(role="user", content=said.content, tool_calls=calls or None)
        state.messages.append(answer)
        return answer, state
