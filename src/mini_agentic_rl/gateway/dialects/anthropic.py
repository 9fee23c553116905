"""Anthropic's messages: content blocks, and tool results in the user's turns.

The blocks of one assistant message become one chat message, as it was recorded. Each tool result becomes a message. The
answer grows out of a chat completion, whole or chunk by chunk.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from ...http import ANYBODY, BadRequestError, Body, HttpError, checked
from ..render.messages import assistant_message
from ..tool_formats import parse_arguments
from .base import (
    AnswerItem,
    CallScope,
    Dialect,
    ItemExchange,
    ItemKind,
    Json,
    chat_request,
    joined_text,
    renamed,
    sent,
    served_tools,
    server_sent,
    text_of_part,
)
from .chat import Thinking
from .parameters import passed_on
from .reader import CallDelta

TOOL_KINDS: Final = ("custom", None, "")
"""Values of a tool's `type` that are served."""

CHAT_FIELDS: Final = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "thinking",
    "tools[].function": "tools[]",
    "tools[].function.name": "tools[].name",
    "tools[].function.description": "tools[].description",
    "tools[].function.strict": "tools[].strict",
    "tools[].function.parameters": "tools[].input_schema",
}
"""Names of the chat request's fields in this dialect, where they differ."""


class GivenMessage(Body):
    """One message: text or blocks."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[dict[str, Any]], Field(fail_fast=True)]


class ToolChoice(Body):
    """Whether tools are used, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Metadata(Body):
    """Metadata of the request."""

    user_id: str | None = None


class ThinkingOptions(Thinking):
    """Switch for the model's thinking, and its approximate amount."""

    budget_tokens: int | None = Field(default=None, ge=1)
    """Tokens; they select the effort and are not a bound."""


class OutputConfig(Body):
    """The form of the answer."""

    format: dict[str, Any] | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class MessagesRequest(Body):
    """`POST /v1/messages`. None means the default."""

    model: str
    messages: list[GivenMessage] = Field(min_length=1, fail_fast=True)
    max_tokens: int = Field(ge=1)
    system: str | Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None
    tools: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    stop_sequences: Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=4)] | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    metadata: Metadata | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None
    """The earlier name of `output_config.format`."""
    thinking: ThinkingOptions | None = None
    stream: bool | None = None
    return_token_ids: bool | None = None


def chat_body(request: MessagesRequest, body: Mapping[str, Any], messages: Sequence[Json]) -> Json:
    """Return the chat request.

    Args:
        request: the validated request.
        body: the request as it was sent, for sampling options that only chat completions have.
        messages: the conversation including system text.

    Raises:
        BadRequestError: a tool or a form of text is not served; `param` names it.
    """
    tools = [_tool(tool, where) for where, tool in served_tools(request.tools, TOOL_KINDS)]
    choice = request.tool_choice
    demanded = choice is not None and choice.type in ("any", "tool")
    chosen: Any = None
    if choice is not None and choice.type == "tool":
        chosen = {"type": "function", "function": {"name": choice.name or ""}}
    elif choice is not None:
        chosen = "required" if choice.type == "any" else choice.type
    options = {
        "max_tokens": request.max_tokens,
        "tools": tools or None,
        "tool_choice": chosen if tools or demanded else None,
        "parallel_tool_calls": False if tools and choice is not None and choice.disable_parallel_tool_use else None,
        "stop": request.stop_sequences or None,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "response_format": _response_format(request),
        "reasoning_effort": _effort(request),
        "user": request.metadata.user_id if request.metadata else None,
        **passed_on(body),
    }
    if messages[-1]["role"] == "assistant":  # the answer continues it
        options |= {"continue_final_message": True, "add_generation_prompt": False}
    return chat_request(request.model, messages, options, request.stream)


def _effort(request: MessagesRequest) -> str | None:
    """Return the reasoning effort; None leaves it to the model."""
    thinking = request.thinking
    effort = None if request.output_config is None else request.output_config.effort
    if thinking is not None and thinking.type == "disabled":
        return "none"
    if effort is not None or thinking is None or thinking.type != "enabled":
        return effort
    budget = thinking.budget_tokens or _MEDIUM
    return "low" if budget < _MEDIUM else "medium" if budget < _HIGH else "high"


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


def _response_format(request: MessagesRequest) -> Json | None:
    config = request.output_config
    where, output_format = "output_format", request.output_format
    if config is not None and config.format is not None:
        where, output_format = "output_config.format", config.format
    if output_format is None:
        return None
    if output_format.get("type") != "json_schema" or not isinstance(output_format.get("schema"), Mapping):
        raise BadRequestError(f'{where}: expected {{"type": "json_schema", "schema": {{...}}}}', param=where)
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": output_format["schema"], "strict": True}}


_MEDIUM: Final = 4_096
_HIGH: Final = 16_384
"""Thinking budgets in tokens from which on the effort is medium and high."""

_TEXT: Final = {"text": "text"}
"""The type of text blocks, and the field that has their text."""
INVALID_JSON: Final = "INVALID_JSON"
"""The field of a tool's input for arguments that are not a JSON object, as in Anthropic's guides."""


def chat_messages(request: MessagesRequest) -> list[Json]:
    """Return the conversation, system text first.

    Raises:
        BadRequestError: a block that cannot be read; `param` names it.
    """
    messages: list[Json] = []
    if request.system:
        messages.append({"role": "system", "content": joined_text(request.system, "system", _TEXT, "\n")})
    for index, given in enumerate(request.messages):
        where = f"messages[{index}].content"
        if given.role == "user":
            messages += _from_user(given, where)
        elif given.role == "assistant":
            messages.append(_from_assistant(given, where))
        else:
            messages.append({"role": "system", "content": joined_text(given.content, where, _TEXT, "\n")})
    return messages


def _from_user(given: GivenMessage, where: str) -> list[Json]:
    """Return tool results, which the API requires first, then the user's text."""
    if isinstance(given.content, str):
        return [{"role": "user", "content": given.content}]
    results: list[Json] = []
    parts: list[Json] = []
    for index, block in enumerate(given.content):
        at = f"{where}[{index}]"
        if block.get("type") == "tool_result":
            results.append(_result(block, at))
        elif block.get("type") == "image":
            parts.append(_image(block, at))
        else:
            parts.append({"type": "text", "text": text_of_part(block, at, _TEXT)})
    content: str | list[Json] = parts
    if all(part["type"] == "text" for part in parts):
        content = "\n".join(part["text"] for part in parts)
    return [*results, {"role": "user", "content": content}] if parts or not results else results


def _from_assistant(given: GivenMessage, where: str) -> Json:
    if isinstance(given.content, str):
        return {"role": "assistant", "content": given.content}
    text, reasoning = "", ""
    calls = []
    for index, block in enumerate(given.content):
        at = f"{where}[{index}]"
        kind = block.get("type")
        if kind == "tool_use":
            calls.append(_call(block, at))
        elif kind == "thinking" and isinstance(block.get("thinking"), str):
            reasoning += block["thinking"]
        elif kind != "redacted_thinking":
            text += text_of_part(block, at, _TEXT)
    return assistant_message(text, reasoning or None, calls)


def _call(block: Mapping[str, Any], where: str) -> Json:
    call_id, name, given = block.get("id"), block.get("name"), block.get("input")
    if not isinstance(call_id, str) or not isinstance(name, str) or not name or not isinstance(given, Mapping):
        raise BadRequestError(f"{where}: tool_use needs an id, a name and an input that is an object", param=where)
    raw = given.get(INVALID_JSON)
    arguments = raw if isinstance(raw, str) and len(given) == 1 else json.dumps(given, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _result(block: Mapping[str, Any], where: str) -> Json:
    call_id = block.get("tool_use_id")
    if not isinstance(call_id, str):
        raise BadRequestError(f"{where}.tool_use_id: expected the id of a call", param=f"{where}.tool_use_id")
    content = block.get("content")
    text = "" if content is None else joined_text(content, f"{where}.content", _TEXT, "\n")
    if block.get("is_error") is True:  # chat completions have no such field
        text = f"error: {text}"
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def _image(block: Mapping[str, Any], where: str) -> Json:
    source = block.get("source")
    kind = source.get("type") if isinstance(source, Mapping) else None
    if isinstance(source, Mapping) and kind == "url" and isinstance(source.get("url"), str):
        return {"type": "image_url", "image_url": {"url": source["url"]}}
    if isinstance(source, Mapping) and kind == "base64" and isinstance(source.get("data"), str):
        url = f"data:{source.get('media_type')};base64,{source['data']}"
        return {"type": "image_url", "image_url": {"url": url}}
    raise BadRequestError(f"{where}.source: expected a url or base64 data", param=f"{where}.source")


_STOP_REASONS: Final = {"tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}
_DELTAS: Final = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}
"""Type and text field of the delta of each kind of block."""
_ERRORS: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class ContentBlock(AnswerItem):
    """One content block of a message."""

    @property
    def signature(self) -> str:
        """Digest of the thinking; empty without thinking. Some clients drop thinking that has no signature; the server
        does not check it."""
        return hashlib.sha256(self.text.encode("utf-8", "replace")).hexdigest() if self.text else ""

    def body(self) -> Json:
        if self.kind == "text":
            return {"type": "text", "text": self.text}
        if self.kind == "reasoning":
            return {"type": "thinking", "thinking": self.text, "signature": self.signature}
        arguments = parse_arguments(self.text)
        given = arguments if isinstance(arguments, dict) else {INVALID_JSON: self.text}
        return {"type": "tool_use", "id": self.call_id, "name": self.name, "input": given}

    def begin(self) -> list[Json]:
        return [self._event("content_block_start", content_block=self.body())]

    def grown(self, text: str) -> list[Json]:
        kind, name = _DELTAS[self.kind]
        return [self._event("content_block_delta", delta={"type": kind, name: text})] if text else []

    def end(self, status: str) -> list[Json]:
        stop = self._event("content_block_stop")
        if self.kind != "reasoning":
            return [stop]
        delta = {"type": "signature_delta", "signature": self.signature}
        return [self._event("content_block_delta", delta=delta), stop]

    def _event(self, kind: str, **fields: object) -> Json:
        return {"type": kind, "index": self.index, **fields}


class MessagesExchange(ItemExchange):
    """One request and the message that answers it."""

    counts_first = True
    id_prefix = "msg_"

    def __init__(self, chat: Json, request: MessagesRequest) -> None:
        super().__init__(chat)
        self._request = request
        self._begun = False

    def answer(self, completion: Json) -> Json:
        self.take(completion)
        return {
            **self._head(),
            "content": [block.body() for block in self.items],
            **self._stop(),
            "usage": self._usage(),
            **self._token_ids(),
        }

    def events(self, chunk: Json) -> bytes:
        return sent(self.take(chunk))

    def end(self) -> bytes:
        events = self.begin() + self.close_item("completed")
        delta = {"type": "message_delta", "delta": self._stop(), "usage": self._usage(), **self._token_ids()}
        return sent([*events, delta, {"type": "message_stop"}])

    def failed(self, error: HttpError) -> bytes:
        return server_sent(_refusal(error), "error")

    def begin(self) -> list[Json]:
        """Return the first event, once. It has the usage of the first chunk; `message_delta` has the final usage."""
        if self._begun:
            return []
        self._begun = True
        message = {**self._head(), "content": [], "stop_reason": None, "stop_sequence": None, "usage": self._usage()}
        return [{"type": "message_start", "message": message}]

    def new_item(self, kind: ItemKind, call: CallDelta | None) -> ContentBlock:
        return ContentBlock(kind, len(self.items), call)

    def _stop(self) -> Json:
        choice = self.reader.first
        sequence = choice.stop_string if choice.finish_reason == "stop" else None
        if sequence is not None and sequence in (self._request.stop_sequences or ()):
            return {"stop_reason": "stop_sequence", "stop_sequence": sequence}
        return {
            "stop_reason": _STOP_REASONS.get(choice.finish_reason or "", "end_turn"),
            "stop_sequence": None,
        }

    def _token_ids(self) -> Json:
        return {"token_ids": self.reader.first.token_ids} if self._request.return_token_ids else {}

    def _usage(self) -> Json:
        reader = self.reader
        return {
            "input_tokens": max(0, reader.prompt_tokens - reader.cached_tokens),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": reader.cached_tokens,
            "output_tokens": reader.completion_tokens,
        }

    def _head(self) -> Json:
        model = self.reader.model or self._request.model
        head: Json = {"id": self.id, "type": "message", "role": "assistant", "model": model}
        with_ids = self._request.return_token_ids
        return {**head, "prompt_token_ids": self.reader.prompt_ids} if with_ids else head


class AnthropicDialect(Dialect):
    """`POST /v1/messages`, and `POST /v1/messages/count_tokens`."""

    path = "/v1/messages"
    request = MessagesRequest
    tool_kinds = TOOL_KINDS
    counting_path = f"{path}/count_tokens"
    counting_fields: ClassVar[Json] = {"max_tokens": 2**31}

    def open(self, body: Json, scope: CallScope, key: str = ANYBODY) -> MessagesExchange:
        request = checked(MessagesRequest, body)
        return MessagesExchange(chat_body(request, body, chat_messages(request)), request)

    def refusal(self, error: HttpError) -> Json:
        return _refusal(error)


def _refusal(error: HttpError) -> Json:
    kind = _ERRORS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": renamed(error, CHAT_FIELDS).message}}
