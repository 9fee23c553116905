"""OpenAI chat completions: the form that is served inside, and its request, checked.

Calls as they were before `tools` are read too: `functions`, `function_call`, results by the function's name. OpenAI
deprecates them, and agents of their time still send them. Such an answer holds one call at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from ...http import ANYBODY, BadRequestError, Body, HttpError, checked
from .base import CallScope, Dialect, Json, served_tools, server_sent
from .parameters import FormFields, refuse_not_served

StopString = Annotated[str, Field(min_length=1, max_length=1024)]
Bias = Annotated[float, Field(ge=-100, le=100)]


class FunctionDefinition(Body):
    """A function that the model may call."""

    name: str = Field(min_length=1, max_length=128)
    """Anthropic takes as many characters; OpenAI 64."""
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
    """Those of the tools that may be called, and whether one of them must be."""

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
    """True if every chunk tells the counts so far, as vLLM has it."""


class Thinking(Body):
    """Switch of the model's thinking, as other servers of this dialect have it."""

    type: Literal["enabled", "disabled", "adaptive", "auto"]


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
_OF_TEMPLATES = (
    *("chat_template_kwargs", "enable_thinking", "thinking", "reasoning_effort"),
    *("continue_final_message", "add_generation_prompt"),
)


class ChatRequest(FormFields):
    """`POST /v1/chat/completions`. None stands for the default."""

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
    """OpenAI takes as many."""
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
    """The same in the words of llama.cpp."""
    reasoning_effort: Effort | None = None
    thinking: Thinking | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=32)] | None = None
    continue_final_message: bool | None = None
    """True if the answer goes on with the last message, which is the assistant's."""
    add_generation_prompt: bool | None = None
    raw_prompt: str | Annotated[list[int], Field(min_length=1, fail_fast=True)] | None = None
    """Text or token ids to sample after as they are; then the messages count for nothing, and the answer is text."""

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
            for name in _OF_TEMPLATES:
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
        tools = {tool.function.name: tool for tool in self.tools or ()}
        if self.tool_choice == "required" and not tools:
            raise BadRequestError("tool_choice 'required' needs tools", param="tool_choice")
        for name in self._chosen_names():
            if name not in tools:
                raise BadRequestError(f"tool_choice names {name!r}, which is not among the tools", param="tool_choice")
        if isinstance(self.tool_choice, AllowedToolsChoice):  # the model is shown only those, and chooses among them
            self.tools = [tools[name] for name in self._chosen_names()]
            self.tool_choice = self.tool_choice.allowed_tools.mode

    def _chosen_names(self) -> list[str]:
        """Return the tools that `tool_choice` names."""
        if isinstance(self.tool_choice, NamedToolChoice):
            return [self.tool_choice.function.name]
        if isinstance(self.tool_choice, AllowedToolsChoice):
            return [tool.function.name for tool in self.tool_choice.allowed_tools.tools]
        return []

    @property
    def choices(self) -> int:
        """Number of answers that are wanted."""
        return self.n or 1

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def repetition(self) -> float:
        """Factor by which the logits of tokens that came before are lowered; 1 leaves them."""
        return self.repetition_penalty or self.repeat_penalty or 1.0

    @property
    def thinks(self) -> bool | None:
        """True if the model is to think; None leaves it to the chat template."""
        if self.enable_thinking is not None:
            return self.enable_thinking
        if self.thinking is not None and self.thinking.type in ("enabled", "disabled"):
            return self.thinking.type == "enabled"
        return None if self.reasoning_effort is None else self.reasoning_effort != "none"

    @property
    def template_settings(self) -> dict[str, Any]:
        """Variables that the chat template is given, under all the names that templates have for them."""
        thinks = {} if self.thinks is None else dict.fromkeys(("enable_thinking", "thinking"), self.thinks)
        effort = {} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}
        return {**thinks, **effort, **(self.chat_template_kwargs or {})}

    @property
    def offered_tools(self) -> list[dict[str, Any]]:
        """The tools that the model is shown and whose calls are read."""
        if self.tool_choice == "none":
            return []
        return [tool.model_dump(exclude_none=True, exclude={"function": {"strict"}}) for tool in self.tools or ()]

    @property
    def one_call(self) -> bool:
        """True if the answer may make one tool call only."""
        return self.parallel_tool_calls is False and bool(self.offered_tools)

    @property
    def must_call(self) -> bool:
        """True if the answer has to begin with a tool call."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, NamedToolChoice)

    @property
    def must_call_name(self) -> str | None:
        """The tool that has to be called; None when any will do or none has to be."""
        if isinstance(self.tool_choice, NamedToolChoice):
            return self.tool_choice.function.name
        if self.tool_choice == "required" and self.tools and len(self.tools) == 1:
            return self.tools[0].function.name
        return None


def parse_chat_request(body: Mapping[str, Any]) -> ChatRequest:
    """Check the body of a chat request.

    Raises:
        BadRequestError: a field has a bad value; `param` names the first such field.
    """
    refuse_not_served(body)
    tools = body.get("tools")
    if isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools):
        body = {**body, "tools": [tool for _, tool in served_tools(tools, Dialect.tool_kinds)]}
    return checked(ChatRequest, body)


DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class ChatExchange:
    """A chat request."""

    counts_first: ClassVar[bool] = False
    chat: Json
    functions: bool = False
    """True if the answer tells calls in the older form."""

    def answer(self, completion: Json) -> Json:
        return as_function_call(completion) if self.functions else completion

    def events(self, chunk: Json) -> bytes:
        return server_sent(self.answer(chunk))

    def end(self) -> bytes:
        return DONE

    def failed(self, error: HttpError) -> bytes:
        return server_sent(error.body())


class ChatDialect(Dialect):
    """`POST /v1/chat/completions`."""

    path = "/v1/chat/completions"
    request = ChatRequest
    further = ("functions", "function_call")

    def open(self, body: Json, scope: CallScope, key: str = ANYBODY) -> ChatExchange:
        return ChatExchange(as_tools(body), functions=True) if has_functions(body) else ChatExchange(body)


def has_functions(body: Json) -> bool:
    """Return True if a chat request is of the older form."""
    messages = body.get("messages")
    asked = body.get("functions") is not None and body.get("tools") is None
    return asked or (
        isinstance(messages, list)
        and any(isinstance(message, dict) and message.get("function_call") for message in messages)
    )


def as_tools(body: Json) -> Json:
    """Rewrite a request of the older form in the present one.

    Raises:
        BadRequestError: `functions` is no list.
    """
    chat = {name: value for name, value in body.items() if name not in ("functions", "function_call")}
    functions = body.get("functions")
    if functions is not None:
        if not isinstance(functions, list):
            raise BadRequestError("functions: expected a list", param="functions")
        chat["tools"] = [{"type": "function", "function": function} for function in functions]
        chat["parallel_tool_calls"] = False
        choice = body.get("function_call")
        if choice is not None:
            named = isinstance(choice, Mapping)
            chat["tool_choice"] = {"type": "function", "function": choice} if named else choice
    if isinstance(chat.get("messages"), list):
        chat["messages"] = [_message(message, index) for index, message in enumerate(chat["messages"])]
    return chat


def as_function_call(answer: Json) -> Json:
    """Rewrite an answer, or a chunk of one, in the older form."""
    choices = answer.get("choices")
    if not isinstance(choices, list):
        return answer
    return {**answer, "choices": [_choice(choice) if isinstance(choice, dict) else choice for choice in choices]}


def _message(message: Any, index: int) -> Any:
    """Rewrite a message of the history. A result follows its call, whose place is the id of both."""
    if not isinstance(message, dict):
        return message
    if message.get("role") == "function":
        return {**message, "role": "tool", "tool_call_id": f"call_{index - 1}"}
    call = message.get("function_call")
    if not call:
        return message
    kept = {name: value for name, value in message.items() if name != "function_call"}
    return {**kept, "tool_calls": [{"id": f"call_{index}", "type": "function", "function": call}]}


def _choice(choice: Json) -> Json:
    changed = dict(choice)
    for field in ("message", "delta"):
        said = choice.get(field)
        calls = said.get("tool_calls") if isinstance(said, dict) else None
        if isinstance(said, dict) and isinstance(calls, list) and calls and isinstance(calls[0], dict):
            kept = {name: value for name, value in said.items() if name != "tool_calls"}
            changed[field] = {**kept, "function_call": calls[0].get("function")}
    if choice.get("finish_reason") == "tool_calls":
        changed["finish_reason"] = "function_call"
    return changed
