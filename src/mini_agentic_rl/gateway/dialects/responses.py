"""OpenAI's responses: items instead of messages, and a server that remembers them.

One chat message of the model comes back as several items: its reasoning, its text, its calls. They are put together
again, so that a client which sends the whole history sends the messages that were recorded. The response grows out of
a chat completion, whole or chunk by chunk: an item begins, grows by pieces of text, and ends.

Tools of type `custom`, whose input is text, are shown to the model as functions with one argument that is text. A
grammar for the input is put into the function's description; it does not constrain the sampling, so that it is named
among what has no effect.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from ...http import ANYBODY, BadRequestError, Body, HttpError, checked, encode
from ..errors import NotFoundError
from .base import (
    AnswerItem,
    CallDelta,
    CallScope,
    Counting,
    Dialect,
    ItemExchange,
    ItemKind,
    Json,
    Lookup,
    assistant_message,
    renamed,
    sent,
    served_tools,
)
from .parameters import passed_on

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


_INPUT: Final = "input"


def as_function(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return the function that stands for a custom tool, in chat's form."""
    described = [tool["description"]] if isinstance(tool.get("description"), str) else []
    if (grammar := grammar_of(tool)) is not None:
        described.append(f"The input has to follow this {grammar.get('syntax')} grammar:\n{grammar.get('definition')}")
    text = {"type": "object", "properties": {_INPUT: {"type": "string"}}, "required": [_INPUT]}
    about = {"description": "\n\n".join(described)} if described else {}
    return {"type": "function", "function": {"name": tool["name"], **about, "parameters": text}}


def grammar_of(tool: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the grammar of a custom tool's input; None where it is any text."""
    form = tool.get("format")
    return form if isinstance(form, Mapping) and form.get("type") == "grammar" else None


def arguments_of(text: str) -> str:
    """Return the arguments of the function for an input."""
    return json.dumps({_INPUT: text}, ensure_ascii=False)


def input_of(arguments: str) -> str:
    """Return the input that a call of the function has; arguments of another form are the input as they stand."""
    try:
        text = json.loads(arguments)[_INPUT]
    except (ValueError, KeyError, TypeError, RecursionError):
        return arguments
    return text if isinstance(text, str) else arguments


_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
_ID_PREFIXES: Final = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
}


class OutputItem(AnswerItem):
    """One item of the output: a message with one part of text, reasoning, or a call. The events are OpenAI's.

    Args:
        kind: what it is.
        index: its place in the output.
        call: the first piece of a call.
        custom: whether it calls a custom tool, whose input is reported when it is whole: it comes as JSON.
        response_id: id of the response.
    """

    def __init__(
        self, kind: ItemKind, index: int, call: CallDelta | None, *, custom: bool = False, response_id: str = ""
    ) -> None:
        super().__init__(kind, index, call)
        if kind == "call":
            self.type = "custom_tool_call" if custom else "function_call"
        else:
            self.type = "message" if kind == "text" else "reasoning"
        self.logprobs: list[Json] = []
        """Those of a message: entries of chat's `logprobs.content`."""
        self._sent_logprobs = 0
        self._status = "in_progress"
        item_id = f"{_ID_PREFIXES[self.type]}_{response_id.removeprefix('resp_')}_{index}"
        self._place: Json = {"item_id": item_id, "output_index": index}

    def body(self) -> Json:
        head = {"id": self._place["item_id"], "type": self.type, "status": self._status}
        if self.type == "message":
            return {**head, "role": "assistant", "content": [self._part()]}
        if self.type == "reasoning":
            return {**head, "summary": [], "content": [self._part()]}
        head |= {"call_id": self.call_id, "name": self.name}
        if self.type == "function_call":
            return {**head, "arguments": self.text}
        return {**head, "input": "" if self._status == "in_progress" else input_of(self.text)}

    def begin(self) -> list[Json]:
        if self.kind == "call":
            return [self._whole("added", self.body())]
        added = self._whole("added", {**self.body(), "content": []})
        return [added, self._event("content_part.added", content_index=0, part=self._part())]

    def grown(self, text: str) -> list[Json]:
        if self.kind == "text":
            new, self._sent_logprobs = self.logprobs[self._sent_logprobs :], len(self.logprobs)
            return [self._event("output_text.delta", content_index=0, delta=text, logprobs=new)]
        if self.kind == "reasoning":
            return [self._event("reasoning_text.delta", content_index=0, delta=text)]
        plain = self.type == "function_call" and text
        return [self._event("function_call_arguments.delta", delta=text)] if plain else []

    def end(self, status: str) -> list[Json]:
        self._status = status
        return [*self._last_events(), self._whole("done", self.body())]

    def _last_events(self) -> list[Json]:
        """Return the events that repeat the whole text."""
        if self.type == "function_call":
            return [self._event("function_call_arguments.done", name=self.name, arguments=self.text)]
        if self.type == "custom_tool_call":
            text = input_of(self.text)
            return [
                self._event("custom_tool_call_input.delta", delta=text),
                self._event("custom_tool_call_input.done", input=text),
            ]
        part = self._part()
        logprobs = {"logprobs": self.logprobs} if self.kind == "text" else {}
        return [
            self._event(f"{part['type']}.done", content_index=0, text=self.text, **logprobs),
            self._event("content_part.done", content_index=0, part=part),
        ]

    def _part(self) -> Json:
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": list(self.logprobs)}

    def _event(self, event: str, **fields: object) -> Json:
        return {"type": f"response.{event}", **self._place, **fields}

    def _whole(self, event: str, item: Json) -> Json:
        return {"type": f"response.output_item.{event}", "output_index": self.index, "item": item}


def _logprob(entry: Json) -> Json:
    """Return one entry of chat's log-probabilities; `bytes` may not be null here."""
    top = entry.get("top_logprobs")
    items = [item for item in top if isinstance(item, dict)] if isinstance(top, list) else []
    top = [{**item, "bytes": item.get("bytes") or []} for item in items]
    return {**entry, "bytes": entry.get("bytes") or [], "top_logprobs": top}


class ResponsesExchange(ItemExchange):
    """One request, and the response to it.

    Args:
        chat: the chat request.
        request: the request.
        conversation: its messages without `instructions`.
        memory: where the response is kept, unless the request says otherwise.
        owner: whose response it is.
    """

    def __init__(
        self,
        chat: Json,
        request: ResponsesRequest,
        conversation: Sequence[Json],
        memory: ResponseMemory,
        owner: Hashable,
    ) -> None:
        super().__init__(chat)
        self._request = request
        self._conversation = conversation
        self._memory = memory
        self._owner = owner
        self._logprobs: list[Json] = []
        self._sent_events = 0
        self._id = ""
        self._status = "in_progress"
        self._error: Json | None = None

    def answer(self, completion: Json) -> Json:
        self._numbered(self.take(completion))
        self._finish()
        return self._body()

    def events(self, chunk: Json) -> bytes:
        return sent(self._numbered(self.take(chunk)))

    def end(self) -> bytes:
        return sent(self._finish())

    def failed(self, error: HttpError) -> bytes:
        error = renamed(error, CHAT_FIELDS)
        events = self.begin()
        self._status = "failed"
        self._error = {"code": error.code or "server_error", "message": error.message}
        return sent(self._numbered([*events, {"type": "response.failed", "response": self._body()}]))

    def begin(self) -> list[Json]:
        """Return the first two events, once."""
        if self._sent_events:
            return []
        return [{"type": f"response.{kind}", "response": self._body()} for kind in ("created", "in_progress")]

    def new_item(self, kind: ItemKind, call: CallDelta | None) -> OutputItem:
        custom = call is not None and call.name in self._request.custom_tools
        return OutputItem(kind, len(self.items), call, custom=custom, response_id=self._response_id)

    def read_logprobs(self, entries: Sequence[Json]) -> None:
        if self._request.wants_logprobs:
            self._logprobs += [_logprob(entry) for entry in entries]

    def _add_text(self, kind: ItemKind, text: str) -> list[Json]:
        events = [] if self._open is not None and self._open.kind == kind else self.add_item(kind)
        self._hand_over_logprobs()
        return events + self.items[-1].add(text)

    def close_item(self, status: str) -> list[Json]:
        self._hand_over_logprobs()
        return super().close_item(status)

    def _hand_over_logprobs(self) -> None:
        """Give an open message the log-probabilities that came since its last text."""
        if isinstance(self._open, OutputItem) and self._open.kind == "text":
            self._open.logprobs += self._logprobs
            self._logprobs = []

    def _finish(self) -> list[Json]:
        """End the response and keep it; return the last events."""
        events = self.begin()
        if not self.calls and not any(item.kind == "text" for item in self.items):
            events += self.add_item("text")
        status = "incomplete" if self.completion.finish_reason in _INCOMPLETE else "completed"
        events += self.close_item(status)
        self._status = status
        body = self._body()
        if self._request.store is not False:
            self._memory.keep(
                self._owner,
                body,
                self._request.previous_response_id,
                [*self._conversation, self._message()],
                input_items(self._request.input, self._response_id),
            )
        return self._numbered([*events, {"type": f"response.{status}", "response": body}])

    @property
    def _response_id(self) -> str:
        """The response's id; it ends as that of the recorded chat completion does."""
        if not self._id:
            self._id = "resp_" + (self.completion.id.removeprefix("chatcmpl-") or uuid.uuid4().hex)
        return self._id

    def _body(self) -> Json:
        """Return the response object."""
        request, completion = self._request, self.completion
        reason = _INCOMPLETE.get(completion.finish_reason or "")
        ended = self._status in ("completed", "incomplete")
        body: Json = {
            "id": self._response_id,
            "object": "response",
            "created_at": completion.created,
            "status": self._status,
            "background": False,
            "error": self._error,
            "incomplete_details": {"reason": reason} if ended and reason else None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "model": completion.model or request.model,
            "output": [] if self._status == "in_progress" else [item.body() for item in self.items],
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": request.previous_response_id,
            "reasoning": request.reasoning.model_dump() if request.reasoning else {"effort": None, "summary": None},
            "store": request.store is not False,
            "temperature": 1.0 if request.temperature is None else request.temperature,
            "text": {"format": (request.text and request.text.format) or {"type": "text"}},
            "tool_choice": request.tool_choice or "auto",
            "tools": request.tools or [],
            "top_logprobs": request.top_logprobs or 0,
            "top_p": 1.0 if request.top_p is None else request.top_p,
            "truncation": "disabled",
            "usage": self._usage() if ended else None,
            "user": request.user,
        }
        if ended and request.return_token_ids:
            body |= {"prompt_token_ids": completion.prompt_token_ids, "token_ids": completion.token_ids}
        return body

    def _message(self) -> Json:
        """Return the answer as the chat message that was recorded."""
        text = "".join(item.text for item in self.items if item.kind == "text")
        reasoning = "".join(item.text for item in self.items if item.kind == "reasoning")
        calls = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.text}}
            for call in self.calls.values()
        ]
        return assistant_message(text, reasoning or None, calls)

    def _usage(self) -> Json:
        completion = self.completion
        return {
            "input_tokens": completion.prompt_tokens,
            "input_tokens_details": {"cached_tokens": completion.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": completion.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": completion.reasoning_tokens},
            "total_tokens": completion.prompt_tokens + completion.completion_tokens,
        }

    def _numbered(self, events: list[Json]) -> list[Json]:
        for event in events:
            event["sequence_number"] = self._sent_events
            self._sent_events += 1
        return events


class ResponsesDialect(Dialect):
    """`POST /v1/responses`, `GET` and `DELETE` of what it gave, `GET` of the items that it was given, and
    `POST /v1/responses/input_tokens`."""

    path = "/v1/responses"
    request = ResponsesRequest
    further = FURTHER_FIELDS
    tool_kinds = TOOL_KINDS

    def __init__(self, memory: ResponseMemory | None = None) -> None:
        self._memory = memory or ResponseMemory()
        one = f"{self.path}/{{id}}"
        self.lookups = (
            Lookup("GET", f"{one}/input_items", self._input_items),
            Lookup("GET", one, self._found),
            Lookup("DELETE", one, self._deleted),
        )
        self.counting = Counting(
            f"{self.path}/input_tokens", lambda body, scope, key: self.open(body, scope, key).chat, _counted
        )

    def open(self, body: Json, scope: CallScope, key: str = ANYBODY) -> ResponsesExchange:
        refuse_what_is_not_served(body)
        request = checked(ResponsesRequest, body)
        previous = request.previous_response_id
        earlier = () if previous is None else self._memory.conversation((key, scope), previous)
        conversation = [*earlier, *chat_messages(request.input)]
        if not conversation:
            raise BadRequestError("input: there is nothing to answer; give text or items", param="input")
        instructions = [] if request.instructions is None else [{"role": "system", "content": request.instructions}]
        chat = chat_body(request, body, [*instructions, *conversation])
        return ResponsesExchange(chat, request, conversation, self._memory, (key, scope))

    def left_out(self, body: Json) -> list[str]:
        tools = body.get("tools")
        placed = enumerate(tools) if isinstance(tools, list) else ()
        held = [at for at, tool in placed if isinstance(tool, dict) and grammar_of(tool) is not None]
        cut = ["truncation"] if body.get("truncation") == "auto" else []
        return [*super().left_out(body), *cut, *(f"tools[{at}].format" for at in held)]

    def refusal(self, error: HttpError) -> Json:
        return renamed(error, CHAT_FIELDS).body()

    def forget(self, scope: CallScope, key: str) -> None:
        self._memory.forget_all((key, scope))

    def _found(self, response_id: str, scope: CallScope, key: str, query: Mapping[str, str]) -> Json:
        response: Json = json.loads(self._memory.response((key, scope), response_id))
        return response

    def _input_items(self, response_id: str, scope: CallScope, key: str, query: Mapping[str, str]) -> Json:
        page = checked(ItemsPage, dict(query))
        items: list[Json] = json.loads(self._memory.input_items((key, scope), response_id))
        items = items[::-1] if page.order == "desc" else items
        start = 0
        if page.after is not None:
            start = next((at for at, item in enumerate(items, 1) if item["id"] == page.after), len(items))
        shown = items[start : start + page.limit]
        first, last = (shown[0]["id"], shown[-1]["id"]) if shown else (None, None)
        more = len(items) > start + page.limit
        return {"object": "list", "data": shown, "has_more": more, "first_id": first, "last_id": last}

    def _deleted(self, response_id: str, scope: CallScope, key: str, query: Mapping[str, str]) -> Json:
        self._memory.forget((key, scope), response_id)
        return {"id": response_id, "object": "response", "deleted": True}


def _counted(tokens: int) -> Json:
    return {"object": "response.input_tokens", "input_tokens": tokens}


_ENTRY_BYTES: Final = 1024
"""Memory of a kept response beside its texts: its objects, ids and places in tables."""


@dataclass
class _KeptResponse:
    response: bytes
    """The response object as JSON."""
    messages: tuple[bytes, ...]
    """The conversation up to and with the answer, without `instructions`: each message as JSON, which takes an eighth
    of the memory of its objects. Conversations that continue each other share them."""
    message_bytes: int
    """Memory of all messages. Those that conversations share are counted for each."""
    items: bytes
    """The items of its input as JSON."""
    used: float
    """Time at which it was last asked for, in seconds of the clock."""

    @property
    def size(self) -> int:
        return len(self.response) + len(self.items) + self.message_bytes + _ENTRY_BYTES


class ResponseMemory:
    """Conversations by owner, which is a key and a scope, and by response id. Nobody sees those of
    another owner. Used from any thread.

    Args:
        max_responses: responses kept; the one used longest ago is forgotten first.
        max_bytes: bytes kept in all.
        max_age_seconds: how long a response is kept after its last use.
        clock: tells the time in seconds.
    """

    def __init__(
        self,
        *,
        max_responses: int = 16_384,
        max_bytes: int = 256 * 1024 * 1024,
        max_age_seconds: float = 6 * 3600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._max_age = max_age_seconds
        self._clock = clock
        self._kept: OrderedDict[tuple[Hashable, str], _KeptResponse] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def conversation(self, owner: Hashable, response_id: str) -> tuple[Json, ...]:
        """Return the messages that lead up to a response, and its answer.

        Raises:
            BadRequestError: it is not kept.
        """
        kept = self._find(owner, response_id)
        if kept is None:
            raise BadRequestError(
                f"Previous response with id {response_id!r} not found. It may have expired; send the whole "
                "conversation as input instead.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        return tuple(json.loads(message) for message in kept.messages)

    def response(self, owner: Hashable, response_id: str) -> bytes:
        """Return the response object as JSON.

        Raises:
            NotFoundError: it is not kept.
        """
        return self._known(owner, response_id).response

    def input_items(self, owner: Hashable, response_id: str) -> bytes:
        """Return the items of a response's input as JSON.

        Raises:
            NotFoundError: it is not kept.
        """
        return self._known(owner, response_id).items

    def keep(
        self,
        owner: Hashable,
        response: Json,
        previous_id: str | None,
        messages: Sequence[Json],
        items: Sequence[Json] = (),
    ) -> None:
        """Keep a response, unless it alone is beyond the bound.

        Args:
            response: the response object.
            previous_id: the response that it continues.
            messages: the conversation up to and with its answer.
            items: those of its input.
        """
        with self._lock:
            previous = self._kept.get((owner, previous_id)) if previous_id is not None else None
        known = () if previous is None else previous.messages
        encoded = (*known, *(encode(message) for message in messages[len(known) :]))
        held = sum(map(sys.getsizeof, encoded)) + sys.getsizeof(encoded)
        kept = _KeptResponse(encode(response), encoded, held, encode(list(items)), self._clock())
        with self._lock:
            self._forget((owner, response["id"]))
            if kept.size > self._max_bytes:
                return
            self._kept[owner, response["id"]] = kept
            self._bytes += kept.size
            while len(self._kept) > self._max_responses or self._bytes > self._max_bytes:
                self._forget(next(iter(self._kept)))
            self._expire()

    def forget(self, owner: Hashable, response_id: str) -> None:
        """Drop a response.

        Raises:
            NotFoundError: it is not kept.
        """
        self._known(owner, response_id)
        with self._lock:
            self._forget((owner, response_id))

    def forget_all(self, owner: Hashable) -> None:
        """Drop all responses of an owner."""
        with self._lock:
            for known in [known for known in self._kept if known[0] == owner]:
                self._forget(known)

    def _known(self, owner: Hashable, response_id: str) -> _KeptResponse:
        kept = self._find(owner, response_id)
        if kept is None:
            raise NotFoundError(f"Response with id {response_id!r} not found. It was not stored here, or has expired.")
        return kept

    def _find(self, owner: Hashable, response_id: str) -> _KeptResponse | None:
        with self._lock:
            self._expire()
            kept = self._kept.get((owner, response_id))
            if kept is not None:
                kept.used = self._clock()
                self._kept.move_to_end((owner, response_id))
            return kept

    def _expire(self) -> None:
        oldest = self._clock() - self._max_age
        while self._kept:
            key, kept = next(iter(self._kept.items()))
            if kept.used > oldest:
                return
            self._forget(key)

    def _forget(self, key: tuple[Hashable, str]) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._bytes -= kept.size
