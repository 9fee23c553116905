"""The body of a responses request, checked, and the chat request that it becomes.

One chat message of the model comes back as several items: its reasoning, its text, its calls. They are put together
again, so that a client which sends the whole history sends the messages that were recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from ....http import BadRequestError, Body
from ..base import Json, served_tools
from ..custom_tools import arguments_of, as_function
from ..parameters import passed_on

# Served by OpenAI from state or machinery of its own. To ignore one of them would be to answer another request.
_NOT_SERVED: Final = {
    "background": "send the request without it and wait, or stream",
    "conversation": "conversations are continued by previous_response_id, or by sending the items again",
    "prompt": "there are no stored prompts; send instructions and input",
}
TOOL_KINDS: Final = ("function", "custom")
"""Values of a tool's `type` that can be served."""
_WITHOUT_EFFECT: Final = ("max_tool_calls", "stream_options")
"""They bound tools that are not served, and pad the events of streams."""
_LOGPROBS: Final = "message.output_text.logprobs"

CHAT_FIELDS: Final = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "logprobs": "top_logprobs",
    "tools[].function": "tools[]",
    "tools[].function.name": "tools[].name",
    "tools[].function.description": "tools[].description",
    "tools[].function.strict": "tools[].strict",
    "tools[].function.parameters": "tools[].parameters",
}
"""Names of the chat request's fields in this dialect, where they differ."""


class TextOptions(Body):
    """The wanted form of the answer's text."""

    format: dict[str, Any] | None = None


class ReasoningOptions(Body):
    """The wanted amount of thinking."""

    effort: str | None = None
    summary: str | None = None


class ResponsesRequest(Body):
    """`POST /v1/responses`. None stands for the default."""

    model: str
    input: str | Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    stop: str | list[str] | None = None
    """Not in OpenAI's API; as in a chat request."""
    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    include: Annotated[list[str], Field(fail_fast=True)] | None = None
    reasoning: ReasoningOptions | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    stream: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    user: str | None = None
    return_token_ids: bool | None = None

    @property
    def wants_logprobs(self) -> bool:
        """True if log-probabilities are to stand beside the text."""
        return bool(self.top_logprobs) or _LOGPROBS in (self.include or ())

    @cached_property
    def custom_tools(self) -> frozenset[Any]:
        """Names of the tools whose input is text."""
        return frozenset(tool.get("name") for tool in self.tools or () if tool.get("type") == "custom")


FURTHER_FIELDS: Final = (*_NOT_SERVED, *_WITHOUT_EFFECT)
"""Fields of a request beside the checked ones."""


class ItemsPage(Body):
    """The query of `GET /v1/responses/{id}/input_items`."""

    order: Literal["asc", "desc"] = "desc"
    limit: int = Field(default=20, ge=1, le=100)
    after: str | None = None


def refuse_what_is_not_served(body: Mapping[str, Any]) -> None:
    """Refuse a request whose answer would not be what it asks for.

    Raises:
        BadRequestError: it asks for a field of OpenAI's that has no meaning here.
    """
    for name, instead in _NOT_SERVED.items():
        if body.get(name):
            raise BadRequestError(f"{name} is not offered here: {instead}", param=name)


def chat_body(request: ResponsesRequest, body: Mapping[str, Any], messages: Sequence[Json]) -> Json:
    """Return the chat request.

    Args:
        request: the checked request.
        body: what was sent, for the sampling options that chat completions have and responses lack.
        messages: the whole conversation.

    Raises:
        BadRequestError: a tool or a form of text that cannot be had here; `param` names it.
    """
    chat: Json = {"model": request.model, "messages": list(messages)}
    tools, tool_choice = _tools(request)
    options = {
        "tools": tools,
        "tool_choice": tool_choice if tools else None,
        "parallel_tool_calls": request.parallel_tool_calls if tools else None,
        "max_tokens": request.max_output_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "response_format": _response_format(request.text.format if request.text else None),
        "reasoning_effort": request.reasoning.effort if request.reasoning else None,
        "user": request.user,
        "stop": request.stop,
        **passed_on(body),
    }
    if request.wants_logprobs:
        options |= {"logprobs": True, "top_logprobs": request.top_logprobs}
    if request.stream:
        options |= {"stream": True, "stream_options": {"include_usage": True}}
    return chat | {name: value for name, value in options.items() if value is not None}


def _tools(request: ResponsesRequest) -> tuple[list[Json] | None, Any]:
    """Return tools and `tool_choice` as chat completions have them."""
    tools = [_tool(tool, where) for where, tool in served_tools(request.tools, TOOL_KINDS)]
    choice = request.tool_choice
    if choice is None or isinstance(choice, str):
        if choice not in (None, "auto", "none", "required"):
            raise BadRequestError(
                f"tool_choice: expected 'auto', 'none', 'required' or an object, not {choice!r}", param="tool_choice"
            )
        if choice == "required" and not tools:
            raise BadRequestError("tool_choice 'required' needs tools", param="tool_choice")
        return tools or None, choice
    if choice.get("type") == "allowed_tools":
        return _allowed(tools, choice)
    if choice.get("type") not in TOOL_KINDS or not isinstance(choice.get("name"), str):
        raise BadRequestError(
            f'tool_choice: {choice.get("type")!r} cannot be chosen; name one as {{"type": "function", "name": "..."}}',
            param="tool_choice",
        )
    _named(tools, choice["name"])
    return tools, {"type": "function", "function": {"name": choice["name"]}}


def _allowed(tools: Sequence[Json], choice: Mapping[str, Any]) -> tuple[list[Json], str]:
    """Read `allowed_tools`: the model is shown only those."""
    mode, allowed = choice.get("mode", "auto"), choice.get("tools")
    names = [tool.get("name") for tool in allowed if isinstance(tool, dict)] if isinstance(allowed, list) else []
    if mode not in ("auto", "required") or not names:
        raise BadRequestError(
            "tool_choice: allowed_tools needs a mode ('auto' or 'required') and a list of tools", param="tool_choice"
        )
    return [_named(tools, name) for name in names], mode


def _named(tools: Sequence[Json], name: Any) -> Json:
    for tool in tools:
        if tool["function"]["name"] == name:
            return tool
    raise BadRequestError(f"tool_choice names {name!r}, which is not among the tools", param="tool_choice")


def _tool(tool: Mapping[str, Any], where: str) -> Json:
    kind = tool.get("type")
    if kind not in TOOL_KINDS:
        raise BadRequestError(
            f"{where}: {kind!r} is a tool that OpenAI hosts or runs by rules of its own; this server has functions "
            "and custom tools only. Give the agent a function that does the same.",
            param=where,
        )
    if not isinstance(tool.get("name"), str) or not tool["name"]:
        raise BadRequestError(f"{where}: a {kind} tool needs a name", param=where)
    if kind == "custom":
        return as_function(tool)
    kept = {name: tool[name] for name in ("name", "description", "parameters", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": kept}


def _response_format(text_format: Mapping[str, Any] | None) -> Json | None:
    kind = None if text_format is None else text_format.get("type")
    if text_format is None or kind == "text":
        return None
    if kind == "json_object":
        return {name: text_format[name] for name in ("type", "schema") if name in text_format}
    if kind != "json_schema":
        raise BadRequestError(
            f"text.format: {kind!r} is not offered; use 'text', 'json_object' or 'json_schema'", param="text.format"
        )
    names = ("name", "description", "schema", "strict")
    kept = {name: text_format[name] for name in names if text_format.get(name) is not None}
    return {"type": "json_schema", "json_schema": kept}


_ROLES: Final = {"user": "user", "system": "system", "developer": "system", "assistant": "assistant"}
_TEXT_PARTS: Final = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "summary_text": "text",
    "reasoning_text": "text",
    "refusal": "refusal",
}


def chat_messages(given: str | Sequence[Mapping[str, Any]] | None) -> list[Json]:
    """Return the messages that `input` holds: text from the user, or items.

    Raises:
        BadRequestError: an item that cannot be read; `param` says which.
    """
    if given is None:
        return []
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    history = _History()
    for index, item in enumerate(given):
        history.take(item, f"input[{index}]")
    return history.messages


_ID_PREFIXES: Final = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
}


def input_items(given: str | Sequence[Mapping[str, Any]] | None, response_id: str) -> list[Json]:
    """Return the items of an `input`, each with its type and an id."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    items: list[Json] = []
    for index, item in enumerate(given or ()):
        kind = item.get("type") or "message"
        named = f"{_ID_PREFIXES.get(kind, 'item')}_{response_id.removeprefix('resp_')}_in{index}"
        whole = {**item, "type": kind, "id": item.get("id") or named}
        if kind == "message" and isinstance(item.get("content"), str):
            part = "output_text" if item.get("role") == "assistant" else "input_text"
            whole["content"] = [{"type": part, "text": item["content"]}]
        items.append(whole)
    return items


class _History:
    """Messages, and the one of the model that further items still belong to."""

    def __init__(self) -> None:
        self.messages: list[Json] = []
        self._reasoning = ""

    def take(self, item: Mapping[str, Any], where: str) -> None:
        kind = item.get("type") or "message"
        if kind == "message":
            self._message(item, where)
        elif kind == "reasoning":
            self._reasoning += _text(item.get("content") or [], f"{where}.content")
        elif kind == "function_call":
            self._call(item, where, item.get("arguments"))
        elif kind == "custom_tool_call":
            text = item.get("input")
            if not isinstance(text, str):
                raise BadRequestError(f"{where}.input: expected text", param=f"{where}.input")
            self._call(item, where, arguments_of(text))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self._result(item, where)
        else:
            raise BadRequestError(
                f"{where}: {kind!r} cannot be read here; send message, function_call, custom_tool_call and reasoning "
                "items, and the outputs of calls",
                param=where,
            )

    def _message(self, item: Mapping[str, Any], where: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise BadRequestError(f"{where}.role: use one of {', '.join(_ROLES)}, not {role!r}", param=f"{where}.role")
        if role != "assistant":
            self._add({"role": _ROLES[role], "content": _content(item.get("content"), f"{where}.content")})
            return
        text = _text(item.get("content"), f"{where}.content")
        speaking = self._speaking()
        if speaking is not None and speaking.get("tool_calls"):
            # Text beside calls that no result follows is of the same answer.
            speaking["content"] = (speaking["content"] or "") + text
            self._remember_reasoning(speaking)
        else:
            self._answer(text)

    def _call(self, item: Mapping[str, Any], where: str, arguments: Any) -> None:
        name = item.get("name")
        if not isinstance(name, str) or not name:
            raise BadRequestError(f"{where}.name: a function call names its function", param=f"{where}.name")
        if not isinstance(arguments, str):
            raise BadRequestError(f"{where}.arguments: expected JSON text", param=f"{where}.arguments")
        speaking = self._speaking()
        if speaking is None or (self._reasoning and not speaking.get("tool_calls")):
            speaking = self._answer(None)
        self._remember_reasoning(speaking)
        call = {"id": _call_id(item, where), "type": "function", "function": {"name": name, "arguments": arguments}}
        speaking.setdefault("tool_calls", []).append(call)

    def _result(self, item: Mapping[str, Any], where: str) -> None:
        content = _text(item.get("output"), f"{where}.output")
        self._add({"role": "tool", "tool_call_id": _call_id(item, where), "content": content})

    def _speaking(self) -> Json | None:
        """Return the last message, when the model said it."""
        return self.messages[-1] if self.messages and self.messages[-1]["role"] == "assistant" else None

    def _answer(self, text: str | None) -> Json:
        message: Json = {"role": "assistant", "content": text}
        self.messages.append(message)
        self._remember_reasoning(message)
        return message

    def _remember_reasoning(self, message: Json) -> None:
        if self._reasoning:
            message["reasoning_content"] = message.get("reasoning_content", "") + self._reasoning
            self._reasoning = ""

    def _add(self, message: Json) -> None:
        self._reasoning = ""
        self.messages.append(message)


def _call_id(item: Mapping[str, Any], where: str) -> str:
    call_id = item.get("call_id")
    if not isinstance(call_id, str):
        raise BadRequestError(f"{where}.call_id: expected the id of a call", param=f"{where}.call_id")
    return call_id


def _content(content: Any, where: str) -> str | list[Json]:
    """Return text, or chat's parts where there are images among it."""
    if isinstance(content, str):
        return content
    parts = [_part(part, f"{where}[{index}]") for index, part in enumerate(_list(content, where))]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    return "".join(_text_of(part, f"{where}[{index}]") for index, part in enumerate(_list(content, where)))


def _part(part: Any, where: str) -> Json:
    if isinstance(part, Mapping) and part.get("type") == "input_image" and isinstance(part.get("image_url"), str):
        image = {name: part[name] for name in ("detail",) if isinstance(part.get(name), str)}
        return {"type": "image_url", "image_url": {"url": part["image_url"], **image}}
    return {"type": "text", "text": _text_of(part, where)}


def _text_of(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    field = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    text = part.get(field) if field else None
    if not isinstance(text, str):
        raise BadRequestError(f"{where}: expected a part that is text, not {kind!r}", param=where)
    return text


def _list(content: Any, where: str) -> list[Any]:
    if not isinstance(content, list):
        raise BadRequestError(f"{where}: expected text or a list of parts", param=where)
    return content
