"""A simple tool-calling agent: a model behind an OpenAI-compatible endpoint, and some tools.

    SimpleAgent("trainer", LLMConfig(model="gpt-4o-mini"), tools=[RLTrainingTool()]).run("…")

It talks to a person and may start a training by a tool. The agent that is trained is a `LitAgent`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from openai import OpenAI, OpenAIError
from pydantic import Field

from ...config import Settings
from ...errors import UserError

DEFAULT_PROMPT = "You are a helpful assistant. Use your tools where they help, and report the result."


class LLMConfig(Settings):
    """Model and endpoint of a `SimpleAgent`. None leaves a value to the OpenAI client and its environment variables."""

    model: str = "gpt-4o-mini"
    """Name of the model, as the endpoint knows it."""
    base_url: str | None = None
    """URL of the endpoint, as `http://127.0.0.1:8000/v1`; None takes OPENAI_BASE_URL, else OpenAI's own."""
    api_key: str | None = Field(default=None, repr=False)
    """API key of the endpoint; None takes OPENAI_API_KEY."""
    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature; None takes the endpoint's."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Most sampled tokens of one answer; None takes the endpoint's limit."""
    timeout: float = Field(default=600.0, gt=0)
    """Timeout of one model call, in seconds."""


class SimpleAgent:
    """Answers a message, calling its tools as often as the model asks for them.

    Args:
        name: name of the agent.
        llm_config: the model.
        tools: tools that the model may call, as `RLTrainingTool`. Each has `openai_tool`, its OpenAI function, and
            `run`, which takes the arguments as a dictionary and returns text.
        system_prompt: first message of the conversation.
        max_turns: most model calls for one message.

    Raises:
        UserError: `max_turns` is below 1, or two tools have one name.
    """

    def __init__(
        self,
        name: str,
        llm_config: LLMConfig | None = None,
        tools: Sequence[Any] = (),
        *,
        system_prompt: str = DEFAULT_PROMPT,
        max_turns: int = 8,
    ) -> None:
        if max_turns < 1:
            raise UserError(f"max_turns must be 1 or more, not {max_turns}")
        self.name = name
        self.llm_config = llm_config or LLMConfig()
        self.max_turns = max_turns
        self._schemas = [tool.openai_tool for tool in tools]
        self._tools = {schema["function"]["name"]: tool for schema, tool in zip(self._schemas, tools, strict=True)}
        if len(self._tools) < len(tools):
            raise UserError("two of the tools have the same name: give each once")
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": system_prompt}]
        """The conversation so far, as OpenAI messages."""

    def run(self, message: str) -> str:
        """Send a message and return the answer; the next call continues the conversation. A failed call leaves
        `messages` unchanged.

        Raises:
            UserError: there is no key for the endpoint, or no answer came within `max_turns` model calls.
            openai.OpenAIError: the endpoint refused a call or could not be reached.
        """
        before = list(self.messages)
        self.messages.append({"role": "user", "content": message})
        try:
            return self._answer()
        except BaseException:
            self.messages = before
            raise

    def _answer(self) -> str:
        config = self.llm_config
        options = {"temperature": config.temperature, "max_tokens": config.max_tokens, "tools": self._schemas or None}
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        with self._client() as client:
            for _ in range(self.max_turns):
                completion = client.chat.completions.create(
                    model=config.model, messages=cast(Any, self.messages), **given
                )
                reply = completion.choices[0].message
                self.messages.append(reply.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
                if not reply.tool_calls:
                    return reply.content or ""
                for call in reply.tool_calls:
                    if call.type == "function":  # the only kind that was offered
                        result = self._use(call.function.name, call.function.arguments)
                        self.messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        raise UserError(f"{self.name} gave no answer within {self.max_turns} model calls: raise max_turns")

    def _client(self) -> OpenAI:
        config = self.llm_config
        key = config.api_key or (None if config.base_url is None else "none")
        try:
            return OpenAI(base_url=config.base_url, api_key=key, timeout=config.timeout)
        except OpenAIError as error:
            raise UserError(f"LLMConfig has no api_key, and OPENAI_API_KEY is not set: {error}") from error

    def _use(self, name: str, arguments: str) -> str:
        """Return the answer of a tool; an invalid call returns an error for the model."""
        tool = self._tools.get(name)
        if tool is None:
            return f"error: there is no tool {name!r}; there are {', '.join(self._tools)}"
        try:
            parameters = json.loads(arguments)
        except ValueError as error:
            return f"error: the arguments of {name} are not valid JSON ({error})"
        if not isinstance(parameters, dict):
            return f"error: the arguments of {name} must be a JSON object"
        return str(tool.run(parameters))
