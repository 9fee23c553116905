"""The body of a chat-completions request, checked. Fields that are not named here are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from .errors import BadRequestError

StopString = Annotated[str, Field(min_length=1)]
Bias = Annotated[float, Field(ge=-100, le=100)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


class FunctionDefinition(_Body):
    """A function that the model may call."""

    name: str = Field(min_length=1, max_length=64)
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolDefinition(_Body):
    """A tool; functions are the only kind."""

    type: Literal["function"] = "function"
    function: FunctionDefinition


class FunctionName(_Body):
    """The function that must be called."""

    name: str


class NamedToolChoice(_Body):
    """`tool_choice` that names a function."""

    type: Literal["function"] = "function"
    function: FunctionName


class StreamOptions(_Body):
    """Options of a streamed answer."""

    include_usage: bool = False


class ResponseFormat(_Body):
    """The wanted form of the answer; output is not constrained, so only text can be promised."""

    type: str = "text"


class ChatRequest(_Body):
    """`POST /v1/chat/completions`. None stands for the default."""

    model: str
    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[ToolDefinition] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedToolChoice | None = None
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
    logit_bias: dict[int, Bias] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    return_token_ids: bool | None = None
    ignore_eos: bool | None = None

    @field_validator("response_format")
    @classmethod
    def _text_only(cls, value: ResponseFormat | None) -> ResponseFormat | None:
        if value is not None and value.type != "text":
            raise ValueError(f"{value.type!r} is not offered: output is not constrained; ask for it in the messages")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise BadRequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
        names = [tool.function.name for tool in self.tools or ()]
        if self.tool_choice == "required" and not names:
            raise BadRequestError("tool_choice 'required' needs tools", param="tool_choice")
        if isinstance(self.tool_choice, NamedToolChoice) and self.tool_choice.function.name not in names:
            raise BadRequestError(
                f"tool_choice names {self.tool_choice.function.name!r}, which is not among the tools",
                param="tool_choice",
            )
        return self

    @property
    def choices(self) -> int:
        """How many answers are wanted."""
        return self.n or 1

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def offered_tools(self) -> list[dict[str, Any]]:
        """The tools that the model is shown and whose calls are read."""
        if self.tool_choice == "none":
            return []
        return [tool.model_dump(exclude_none=True) for tool in self.tools or ()]

    @property
    def must_call(self) -> bool:
        """Whether the answer has to begin with a tool call."""
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
    """The request in a JSON object.

    Raises:
        BadRequestError: a field has a bad value; `param` names the first such field.
    """
    try:
        return ChatRequest.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        location = first["loc"]
        message = first["msg"].removeprefix("Value error, ")
        if not location:
            raise BadRequestError(f"the body is not a valid request: {message}") from None
        param = str(location[0])
        if len(location) > 1 and isinstance(location[1], int):
            param = f"{param}[{location[1]}]"
        raise BadRequestError(f"{param}: {message}", param=param) from None
