"""The body of a messages request, checked, and the chat request that it becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from ....http import Body
from ...errors import BadRequestError
from ..base import Json

# Sampling options of chat completions that the messages API lacks; they pass as they are.
_EXTENSIONS: Final = ("seed", "min_p", "logit_bias", "ignore_eos", "return_token_ids")

CHAT_FIELDS: Final = {"stop": "stop_sequences", "response_format": "output_config.format"}
"""What the fields of the chat request are called here, where they are called otherwise."""


class GivenMessage(Body):
    """One message: text or blocks."""

    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]


class ToolChoice(Body):
    """Whether tools are to be used, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Metadata(Body):
    """Who asks."""

    user_id: str | None = None


class OutputConfig(Body):
    """The wanted form of the answer."""

    format: dict[str, Any] | None = None
    effort: str | None = None


class MessagesRequest(Body):
    """`POST /v1/messages`. None stands for the default."""

    model: str
    messages: list[GivenMessage] = Field(min_length=1)
    max_tokens: int = Field(ge=1)
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice | None = None
    stop_sequences: Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=4)] | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    metadata: Metadata | None = None
    output_config: OutputConfig | None = None
    stream: bool | None = None
    return_token_ids: bool | None = None


def chat_body(request: MessagesRequest, body: Mapping[str, Any], messages: Sequence[Json]) -> Json:
    """The chat request.

    Args:
        request: the checked request.
        body: what was sent, for the sampling options that chat completions have and the messages API lacks.
        messages: the conversation, system text included.

    Raises:
        BadRequestError: a tool or a form of text that cannot be had here; `param` names it.
    """
    tools = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(request.tools or ())]
    choice = request.tool_choice
    options = {
        "tools": tools or None,
        "tool_choice": _tool_choice(choice, tools),
        "parallel_tool_calls": False if tools and choice is not None and choice.disable_parallel_tool_use else None,
        "stop": request.stop_sequences or None,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "response_format": _response_format(request.output_config),
        "reasoning_effort": request.output_config.effort if request.output_config else None,
        "user": request.metadata.user_id if request.metadata else None,
        **{name: body.get(name) for name in _EXTENSIONS},
    }
    if request.stream:
        options |= {"stream": True, "stream_options": {"include_usage": True}}
    chat: Json = {"model": request.model, "messages": list(messages), "max_tokens": request.max_tokens}
    return chat | {name: value for name, value in options.items() if value is not None}


def _tool(tool: Mapping[str, Any], where: str) -> Json:
    kind = tool.get("type") or "custom"
    if kind != "custom":
        raise BadRequestError(
            f"{where}: {kind!r} is a tool that Anthropic defines or hosts; this server has tools with a name and an "
            "input_schema only. Give the agent such a tool that does the same.",
            param=where,
        )
    if not isinstance(tool.get("name"), str) or not tool["name"]:
        raise BadRequestError(f"{where}.name: a tool needs a name", param=f"{where}.name")
    if not isinstance(tool.get("input_schema"), Mapping):
        raise BadRequestError(f"{where}.input_schema: expected a JSON schema", param=f"{where}.input_schema")
    kept = {name: tool[name] for name in ("name", "description", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": {**kept, "parameters": tool["input_schema"]}}


def _tool_choice(choice: ToolChoice | None, tools: Sequence[Json]) -> Any:
    if choice is None or (choice.type in ("auto", "none") and not tools):
        return None
    if choice.type in ("auto", "none"):
        return choice.type
    if not tools:
        raise BadRequestError(f"tool_choice: {choice.type!r} needs tools", param="tool_choice")
    if choice.type == "any":
        return "required"
    if choice.name not in [tool["function"]["name"] for tool in tools]:
        raise BadRequestError(f"tool_choice.name: {choice.name!r} is not among the tools", param="tool_choice.name")
    return {"type": "function", "function": {"name": choice.name}}


def _response_format(config: OutputConfig | None) -> Json | None:
    if config is None or config.format is None:
        return None
    if config.format.get("type") != "json_schema" or not isinstance(config.format.get("schema"), Mapping):
        raise BadRequestError(
            'output_config.format: expected {"type": "json_schema", "schema": {...}}', param="output_config.format"
        )
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": config.format["schema"], "strict": True}}
