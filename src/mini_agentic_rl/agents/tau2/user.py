"""The side that stays as it is: the suite's user simulator on a model of its own.

In telecom the simulated user has tools too (a phone to look at and to switch things on).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .speaker import MalformedCallError, Speaker, read_arguments
from .suite import MultiToolMessage, ToolCall, UserMessage, UserSimulator, to_litellm_messages

MAX_TRIES = 4
"""How often a user that says nothing is asked again, as the suite does."""


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
        """What the user says to the assistant, or which tools it calls.

        Raises:
            UserSimulatorError: it said nothing, or made a malformed call.
            EpisodeEndedError: the conversation has outgrown the user's context ("context_length").
            PromptTooLongError: not even the scenario fits into it.
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
