"""OpenAI's responses: items instead of messages, and a server that remembers conversations.

The request becomes a chat request; `responses_input.py` joins the items of each answer to one message again. The
response grows out of a chat completion, whole or chunk by chunk: each item is opened, grows by pieces of text, and is
closed.

Tools of type `custom`, whose input is plain text, are shown to the model as functions with one text argument. A grammar
for the input is added to the function's description. It does not constrain the sampling, so it is reported as ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from ...http import ANYBODY, BadRequestError, Body, HttpError, checked
from ..errors import NotFoundError
from .base import (
    AnswerItem,
    CallScope,
    Dialect,
    ItemExchange,
    ItemKind,
    Json,
    chat_request,
    renamed,
    sent,
    served_tools,
)
from .parameters import passed_on
from .reader import CallDelta
from .responses_input import ID_PREFIXES, INPUT, ResponseMemory, chat_messages, input_items

# OpenAI serves these from its own state. To ignore one would be to answer another request.
_NOT_SERVED: Final = {
    "background": "send the request without it and wait, or stream",
    "conversation": "conversations are continued by previous_response_id, or by sending the items again",
    "prompt": "there are no stored prompts; send instructions and input",
}
TOOL_KINDS: Final = ("function", "custom")
"""Values of a tool's `type` that are served."""
_IGNORED: Final = ("max_tool_calls", "stream_options")
"""They bound tools that are not served, and pad the events of streams."""
_LOGPROBS: Final = "message.output_text.logprobs"

CHAT_FIELDS: Final = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "tools[].function": "tools[]",
    "tools[].function.name": "tools[].name",
    "tools[].function.description": "tools[].description",
    "tools[].function.strict": "tools[].strict",
    "tools[].function.parameters": "tools[].parameters",
}
"""Names of the chat request's fields in this dialect, where they differ."""


class TextOptions(Body):
    """The form of the answer's text."""

    format: dict[str, Any] | None = None


class ReasoningOptions(Body):
    """The amount of thinking."""

    effort: str | None = None
    summary: str | None = None


class ItemsPage(Body):
    """The query of `GET /v1/responses/{id}/input_items`."""

    order: Literal["asc", "desc"] = "desc"
    limit: int = Field(default=20, ge=1, le=100)
    after: str | None = None


class ResponsesRequest(Body):
    """`POST /v1/responses`. None means the default."""

    model: str
    input: str | Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None
    tool_choice: Literal["auto", "none", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    stop: str | list[str] | None = None
    """As in a chat request; not in OpenAI's API."""
    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    include: Annotated[list[str], Field(fail_fast=True)] | None = None
    reasoning: ReasoningOptions | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    stream: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    user: str | None = None
    return_token_ids: bool | None = None


def chat_body(request: ResponsesRequest, body: Mapping[str, Any], messages: Sequence[Json]) -> Json:
    """Return the chat request.

    Args:
        request: the validated request.
        body: the request as it was sent, for sampling options that only chat completions have.
        messages: the whole conversation.

    Raises:
        BadRequestError: a tool or a form of text is not served; `param` names it.
    """
    tools = [_tool(tool, place) for place, tool in served_tools(request.tools, TOOL_KINDS)]
    demanded = request.tool_choice not in (None, "auto", "none")
    options = {
        "tools": tools or None,
        "tool_choice": _tool_choice(request.tool_choice) if tools or demanded else None,
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
    return chat_request(request.model, messages, options, request.stream)


def _tool(tool: Mapping[str, Any], place: str) -> Json:
    kind = tool.get("type")
    if kind not in TOOL_KINDS:
        raise BadRequestError(
            f"{place}: {kind!r} is a tool that OpenAI hosts or runs by rules of its own; this server has functions "
            "and custom tools only. Give the agent a function that does the same.",
            param=place,
        )
    if not isinstance(tool.get("name"), str) or not tool["name"]:
        raise BadRequestError(f"{place}: a {kind} tool needs a name", param=place)
    if kind == "function":
        names = ("name", "description", "parameters", "strict")
        return {"type": "function", "function": {name: tool[name] for name in names if tool.get(name) is not None}}
    description = [tool["description"]] if isinstance(tool.get("description"), str) else []
    if (grammar := _grammar(tool)) is not None:
        description.append(
            f"The input has to follow this {grammar.get('syntax')} grammar:\n{grammar.get('definition')}"
        )
    function = {
        "name": tool["name"],
        "parameters": {"type": "object", "properties": {INPUT: {"type": "string"}}, "required": [INPUT]},
    }
    if description:
        function["description"] = "\n\n".join(description)
    return {"type": "function", "function": function}


def _grammar(tool: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the grammar of a custom tool's input; None if any text is allowed."""
    form = tool.get("format")
    return form if isinstance(form, Mapping) and form.get("type") == "grammar" else None


def _tool_choice(choice: str | Mapping[str, Any] | None) -> Any:
    if choice is None or isinstance(choice, str):
        return choice
    if choice.get("type") == "allowed_tools":
        allowed = choice.get("tools")
        if not isinstance(allowed, list) or choice.get("mode", "auto") not in ("auto", "required"):
            raise BadRequestError(
                "tool_choice: allowed_tools needs a mode ('auto' or 'required') and a list of tools",
                param="tool_choice",
            )
        tools = [{"type": "function", "function": {"name": tool.get("name")}} for tool in allowed if tool]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode", "auto"), "tools": tools}}
    if choice.get("type") not in TOOL_KINDS or not isinstance(choice.get("name"), str):
        raise BadRequestError(
            f'tool_choice: {choice.get("type")!r} cannot be chosen; name one as {{"type": "function", "name": "..."}}',
            param="tool_choice",
        )
    return {"type": "function", "function": {"name": choice["name"]}}


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


_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}


def _custom_input(arguments: str) -> str:
    """Return the input of a custom tool, given the arguments of its function; other arguments are the input itself."""
    try:
        text = json.loads(arguments)[INPUT]
    except (ValueError, KeyError, TypeError, RecursionError):
        return arguments
    return text if isinstance(text, str) else arguments


class OutputItem(AnswerItem):
    """One item of the output: a message with one text part, reasoning, or a call.

    Args:
        kind: its kind.
        index: its position in the output.
        call: the first piece of a call.
        item_type: its type. The input of a custom tool arrives as JSON, so it is reported when it is complete.
        response_id: id of the response.
    """

    def __init__(self, kind: ItemKind, index: int, call: CallDelta | None, item_type: str, response_id: str) -> None:
        super().__init__(kind, index, call)
        self.type = item_type
        self._status = "in_progress"
        item_id = f"{ID_PREFIXES[self.type]}_{response_id.removeprefix('resp_')}_{index}"
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
        return {**head, "input": "" if self._status == "in_progress" else _custom_input(self.text)}

    def begin(self) -> list[Json]:
        if self.kind == "call":
            return [self._whole("added", self.body())]
        added = self._whole("added", {**self.body(), "content": []})
        return [added, self._event("content_part.added", content_index=0, part=self._part())]

    def grown(self, text: str) -> list[Json]:
        if self.kind == "text":
            return [self._event("output_text.delta", content_index=0, delta=text, logprobs=[])]
        if self.kind == "reasoning":
            return [self._event("reasoning_text.delta", content_index=0, delta=text)]
        plain = self.type == "function_call" and text
        return [self._event("function_call_arguments.delta", delta=text)] if plain else []

    def end(self, status: str) -> list[Json]:
        self._status = status
        return [*self._whole_text(), self._whole("done", self.body())]

    def _whole_text(self) -> list[Json]:
        if self.type == "function_call":
            return [self._event("function_call_arguments.done", name=self.name, arguments=self.text)]
        if self.type == "custom_tool_call":
            text = _custom_input(self.text)
            return [
                self._event("custom_tool_call_input.delta", delta=text),
                self._event("custom_tool_call_input.done", input=text),
            ]
        part = self._part()
        logprobs: Json = {"logprobs": []} if self.kind == "text" else {}
        return [
            self._event(f"{part['type']}.done", content_index=0, text=self.text, **logprobs),
            self._event("content_part.done", content_index=0, part=part),
        ]

    def _part(self) -> Json:
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}

    def _event(self, event: str, **fields: object) -> Json:
        return {"type": f"response.{event}", **self._place, **fields}

    def _whole(self, event: str, item: Json) -> Json:
        return {"type": f"response.output_item.{event}", "output_index": self.index, "item": item}


class ResponsesExchange(ItemExchange):
    """One request and its response.

    Args:
        chat: the chat request.
        request: the validated request.
        keep: keeps the response, given its object and the answer's message; None with `store: false`.
    """

    id_prefix = "resp_"

    def __init__(self, chat: Json, request: ResponsesRequest, keep: Callable[[Json, Json], None] | None) -> None:
        super().__init__(chat)
        self._request = request
        self._keep = keep
        self._custom_tools = {tool.get("name") for tool in request.tools or () if tool.get("type") == "custom"}
        """Names of the tools whose input is plain text."""
        self._sent_events = 0
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
        item_type = "message" if kind == "text" else "reasoning"
        if call is not None:
            item_type = "custom_tool_call" if call.name in self._custom_tools else "function_call"
        return OutputItem(kind, len(self.items), call, item_type, self.id)

    def _finish(self) -> list[Json]:
        """Complete and keep the response; return the last events."""
        events = self.begin()
        if not any(item.kind in ("call", "text") for item in self.items):
            events += self.add_item("text")
        status = "incomplete" if self.reader.first.finish_reason in _INCOMPLETE else "completed"
        events += self.close_item(status)
        self._status = status
        body = self._body()
        if self._keep is not None:
            self._keep(body, self.reader.first.message)
        return self._numbered([*events, {"type": f"response.{status}", "response": body}])

    def _body(self) -> Json:
        """Return the response object."""
        request, reader = self._request, self.reader
        reason = _INCOMPLETE.get(reader.first.finish_reason or "")
        ended = self._status in ("completed", "incomplete")
        body: Json = {
            "id": self.id,
            "object": "response",
            "created_at": reader.created,
            "status": self._status,
            "background": False,
            "error": self._error,
            "incomplete_details": {"reason": reason} if ended and reason else None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "model": reader.model or request.model,
            "output": [] if self._status == "in_progress" else [item.body() for item in self.items],
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": request.previous_response_id,
            "reasoning": request.reasoning.model_dump() if request.reasoning else {"effort": None, "summary": None},
            "store": request.store is not False,
            "temperature": 1.0 if request.temperature is None else request.temperature,
            "text": {"format": (request.text and request.text.format) or {"type": "text"}},
            "tool_choice": request.tool_choice or "auto",
            "tools": request.tools or [],
            "top_logprobs": 0,
            "top_p": 1.0 if request.top_p is None else request.top_p,
            "truncation": "disabled",
            "usage": self._usage() if ended else None,
            "user": request.user,
        }
        if ended and request.return_token_ids:
            body |= {"prompt_token_ids": reader.prompt_ids, "token_ids": reader.first.token_ids}
        return body

    def _usage(self) -> Json:
        reader = self.reader
        return {
            "input_tokens": reader.prompt_tokens,
            "input_tokens_details": {"cached_tokens": reader.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": reader.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": reader.reasoning_tokens},
            "total_tokens": reader.prompt_tokens + reader.completion_tokens,
        }

    def _numbered(self, events: list[Json]) -> list[Json]:
        for event in events:
            event["sequence_number"] = self._sent_events
            self._sent_events += 1
        return events


class ResponsesDialect(Dialect):
    """`POST /v1/responses`, `GET` and `DELETE` of a response, `GET` of its input items, and
    `POST /v1/responses/input_tokens`."""

    path = "/v1/responses"
    request = ResponsesRequest
    further = (*_NOT_SERVED, *_IGNORED)
    tool_kinds = TOOL_KINDS
    chat_fields = CHAT_FIELDS
    counting_path = f"{path}/input_tokens"
    counting_answer: ClassVar[Json] = {"object": "response.input_tokens"}

    def __init__(self) -> None:
        self._memory = ResponseMemory()
        path = f"{self.path}/{{id}}"
        self.lookups = {
            ("GET", path): lambda id_, scope, key, query: json.loads(self._memory.find((key, scope), id_).body),
            ("DELETE", path): self._delete,
            ("GET", f"{path}/input_items"): self._input_items,
        }

    def open(self, body: Json, scope: CallScope, key: str = ANYBODY) -> ResponsesExchange:
        for name, instead in _NOT_SERVED.items():
            if body.get(name):
                raise BadRequestError(f"{name} is not offered here: {instead}", param=name)
        request = checked(ResponsesRequest, body)
        earlier: tuple[bytes, ...] = ()
        if request.previous_response_id is not None:
            try:
                earlier = self._memory.find((key, scope), request.previous_response_id).messages
            except NotFoundError:
                raise BadRequestError(
                    f"Previous response with id {request.previous_response_id!r} not found. It may have been dropped; "
                    "send the whole conversation as input instead.",
                    param="previous_response_id",
                    code="previous_response_not_found",
                ) from None
        messages = chat_messages(request.input)
        if not earlier and not messages:
            raise BadRequestError("input: there is nothing to answer; give text or items", param="input")
        instructions = [] if request.instructions is None else [{"role": "system", "content": request.instructions}]
        chat = chat_body(request, body, [*instructions, *map(json.loads, earlier), *messages])

        def keep(response: Json, answer: Json) -> None:
            items = input_items(request.input, response["id"])
            self._memory.keep((key, scope), response, earlier, [*messages, answer], items)

        return ResponsesExchange(chat, request, None if request.store is False else keep)

    def left_out(self, body: Json) -> list[str]:
        tools = body.get("tools")
        ignored = ["truncation"] if body.get("truncation") == "auto" else []
        if isinstance(body.get("include"), list) and _LOGPROBS in body["include"]:
            ignored.append(f"include ({_LOGPROBS})")
        for index, tool in enumerate(tools if isinstance(tools, list) else ()):
            if isinstance(tool, dict) and _grammar(tool) is not None:
                ignored.append(f"tools[{index}].format")
        return [*super().left_out(body), *ignored]

    def forget(self, scope: CallScope, key: str) -> None:
        self._memory.forget((key, scope))

    def _delete(self, response_id: str, scope: CallScope, key: str, query: Mapping[str, str]) -> Json:
        self._memory.delete((key, scope), response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    def _input_items(self, response_id: str, scope: CallScope, key: str, query: Mapping[str, str]) -> Json:
        page = checked(ItemsPage, dict(query))
        items: list[Json] = json.loads(self._memory.find((key, scope), response_id).items)
        if page.order == "desc":
            items.reverse()
        if page.after is not None:
            start = next((at for at, item in enumerate(items, 1) if item["id"] == page.after), len(items))
            items = items[start:]
        shown = items[: page.limit]
        first, last = (shown[0]["id"], shown[-1]["id"]) if shown else (None, None)
        return {
            "object": "list",
            "data": shown,
            "has_more": len(items) > len(shown),
            "first_id": first,
            "last_id": last,
        }
