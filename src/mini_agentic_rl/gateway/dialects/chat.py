"""OpenAI chat completions: the validated request that all dialects are translated to, and the dialect itself."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ...http import ANYBODY, BadRequestError, Body, checked
from .base import CallScope, Dialect, Exchange, Json, served_tools
from .parameters import FormFields, refuse_not_served

StopString = Annotated[str, Field(min_length=1, max_length=1024)]
Bias = Annotated[float, Field(ge=-100, le=100)]


class FunctionDefinition(Body):
    """A function that the model may call."""

    name: str = Field(min_length=1, max_length=128)
    """Anthropic has the same bound; OpenAI's is 64."""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(Body):
    """A tool; functions are the only kind."""

    type: Literal["function"] = "function"
    function: FunctionDefinition


class FunctionName(Body):
    """The function that must be called."""

    name: str


class NamedToolChoice(Body):
    """`tool_choice` that names a function."""

    type: Literal["function"] = "function"
    function: FunctionName


class AllowedTools(Body):
    """The tools that may be called, and whether one of them must be."""

    mode: Literal["auto", "required"] = "auto"
    tools: list[NamedToolChoice] = Field(min_length=1)


class AllowedToolsChoice(Body):
    """`tool_choice` that allows some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


class StreamOptions(Body):
    """Options of a streamed answer."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    """True if every chunk reports the token counts so far, as in vLLM."""


class Thinking(Body):
    """Switch for the model's thinking, as in other servers of this dialect."""

    type: Literal["enabled", "disabled", "adaptive", "auto"]


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
_TEMPLATE_FIELDS = (
    *("chat_template_kwargs", "enable_thinking", "thinking", "reasoning_effort"),
    *("continue_final_message", "add_generation_prompt"),
)


class ChatRequest(FormFields):
    """`POST /v1/chat/completions`. None means the default."""

    model: str
    messages: Annotated[list[dict[str, Any]], Field(fail_fast=True)] = Field(min_length=1)
    tools: Annotated[list[ToolDefinition], Field(fail_fast=True)] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedToolChoice | AllowedToolsChoice | None = None
    parallel_tool_calls: bool | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    n: int | None = Field(default=None, ge=1, le=128)
    stop: StopString | Annotated[list[StopString], Field(max_length=4)] | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    logit_bias: Annotated[dict[int, Bias], Field(max_length=300)] | None = None
    """OpenAI has the same bound."""
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=300)] | None = None
    min_tokens: int | None = Field(default=None, ge=0)
    repetition_penalty: float | None = Field(default=None, ge=0.01, le=100)
    repeat_penalty: float | None = Field(default=None, ge=0.01, le=100)
    """The name of `repetition_penalty` in llama.cpp."""
    reasoning_effort: Effort | None = None
    thinking: Thinking | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=32)] | None = None
    continue_final_message: bool | None = None
    """True if the answer continues the last message, which must be the assistant's."""
    add_generation_prompt: bool | None = None
    raw_prompt: str | Annotated[list[int], Field(min_length=1, fail_fast=True)] | None = None
    """Text or token ids of the whole prompt; the messages are ignored then, and the answer is plain text."""

    @model_validator(mode="after")
    def _consistent(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise BadRequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
        if self.stream_options is not None and not self.stream:
            raise BadRequestError("stream_options needs stream to be true", param="stream_options")
        most = self.max_completion_tokens or self.max_tokens
        if self.min_tokens and most and self.min_tokens > most:
            raise BadRequestError(f"min_tokens: {self.min_tokens} is more than max_tokens={most}", param="min_tokens")
        self._check_continuation()
        self._check_tool_choice()
        return self

    def _check_continuation(self) -> None:
        if self.raw_prompt is not None:
            for name in _TEMPLATE_FIELDS:
                if getattr(self, name) is not None:
                    raise BadRequestError(f"{name}: a text completion has no chat template", param=name)
        if not self.continue_final_message:
            return
        if self.add_generation_prompt:
            raise BadRequestError(
                "continue_final_message continues the last message, add_generation_prompt begins a new one: send one",
                param="continue_final_message",
            )
        last = self.messages[-1]
        if last.get("role") != "assistant" or last.get("tool_calls"):
            raise BadRequestError(
                "continue_final_message: the last message has to be text of the assistant",
                param="continue_final_message",
            )

    def _check_tool_choice(self) -> None:
        choice, tools = self.tool_choice, {tool.function.name: tool for tool in self.tools or ()}
        if choice == "required" and not tools:
            raise BadRequestError("tool_choice: a required call needs tools", param="tool_choice")
        names: list[str] = []
        if isinstance(choice, NamedToolChoice):
            names = [choice.function.name]
        elif isinstance(choice, AllowedToolsChoice):
            names = [tool.function.name for tool in choice.allowed_tools.tools]
        for name in names:
            if name not in tools:
                raise BadRequestError(f"tool_choice: {name!r} is not among the tools", param="tool_choice")
        if isinstance(choice, AllowedToolsChoice):  # only these are shown to the model
            self.tools = [tools[name] for name in names]
            self.tool_choice = choice.allowed_tools.mode

    @property
    def choices(self) -> int:
        """Number of answers."""
        return self.n or 1

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def thinks(self) -> bool | None:
        """True if the model should think; None leaves it to the chat template."""
        if self.enable_thinking is not None:
            return self.enable_thinking
        if self.thinking is not None and self.thinking.type in ("enabled", "disabled"):
            return self.thinking.type == "enabled"
        return None if self.reasoning_effort is None else self.reasoning_effort != "none"

    @property
    def template_settings(self) -> dict[str, Any]:
        """Variables for the chat template, under all the names that templates use."""
        thinks = {} if self.thinks is None else dict.fromkeys(("enable_thinking", "thinking"), self.thinks)
        effort = {} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}
        return {**thinks, **effort, **(self.chat_template_kwargs or {})}

    @cached_property
    def offered_tools(self) -> list[dict[str, Any]]:
        """The tools that are shown to the model and whose calls are read."""
        if self.tool_choice == "none":
            return []
        return [tool.model_dump(exclude_none=True, exclude={"function": {"strict"}}) for tool in self.tools or ()]

    @property
    def must_call(self) -> bool:
        """True if the answer must begin with a tool call."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, NamedToolChoice)

    @property
    def must_call_name(self) -> str | None:
        """The tool that must be called; None if any may be, or none must."""
        if isinstance(self.tool_choice, NamedToolChoice):
            return self.tool_choice.function.name
        if self.tool_choice == "required" and self.tools and len(self.tools) == 1:
            return self.tools[0].function.name
        return None


def parse_chat_request(body: Mapping[str, Any]) -> ChatRequest:
    """Validate the body of a chat request.

    Raises:
        BadRequestError: a field has a bad value; `param` names the first such field.
    """
    refuse_not_served(body)
    tools = body.get("tools")
    if isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools):
        served = served_tools(tools, Dialect.tool_kinds)
        for place, tool in served:
            if tool.get("type") == "custom":
                raise BadRequestError(
                    f"{place}.type: chat completions serve tools of type 'function' only; send custom tools to "
                    "/v1/responses",
                    param=f"{place}.type",
                )
        body = {**body, "tools": [tool for _, tool in served]}
    return checked(ChatRequest, body)


class ChatDialect(Dialect):
    """`POST /v1/chat/completions`."""

    path = "/v1/chat/completions"
    request = ChatRequest

    def open(self, body: Json, scope: CallScope, key: str = ANYBODY) -> Exchange:
        return Exchange(body)
