"""Convert spans to messages: rows for fine-tuning in OpenAI's format, and the conversations of a rollout for display.

Messages come from the gateway, or from other instrumentations (AgentOps, LiteLLM's OpenTelemetry callback, Weave).
These keep messages as numbered attributes (`gen_ai.prompt.0.role`) and tokens under other names, sometimes as text.
`as_ours` gives such a span the attributes that the gateway writes; `nested` puts numbered attributes together.
"""

from __future__ import annotations

import ast
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict

from ..emitter import unflatten_attributes
from ..semconv import CompletionSpanAttributes as Key
from ..types import Attributes, Span
from .base import TraceAdapter, by_attempt

logger = logging.getLogger(__name__)


class OpenAIMessages(TypedDict):
    """Row for fine-tuning."""

    messages: list[dict[str, Any]]
    """Messages of the conversation, the sampled one last."""
    tools: list[dict[str, Any]] | None
    """Tools that the call offered; None if it offered none."""


class TraceToMessages(TraceAdapter[list[OpenAIMessages]]):
    """Adapter that gives one row per sampled message, in order.

    Spans without messages are left out; those whose messages cannot be read are logged.
    """

    def adapt(self, source: Sequence[Span], /) -> list[OpenAIMessages]:
        rows = []
        for group in by_attempt(source).values():
            for span in group:
                if Key.INPUT_MESSAGES in span.attributes and Key.OUTPUT_MESSAGES in span.attributes:
                    row = _row(span)
                    if row is not None:
                        rows.append(row)
                elif completion_of(span):
                    children = [child for child in group if child.parent_id == span.span_id]
                    messages, tools = openai_messages(span, children)
                    rows.append(OpenAIMessages(messages=messages, tools=tools or None))
        return rows


def parsed_messages(span: Span, key: str) -> list[dict[str, Any]]:
    """Parse the messages under `key`, which are JSON text. A single message becomes a list of one, none an empty list.

    Raises:
        ValueError: the text is no JSON.
    """
    text = span.attributes.get(key)
    if text is None:
        return []
    value = json.loads(text)
    return value if isinstance(value, list) else [value]


def _row(span: Span) -> OpenAIMessages | None:
    try:
        messages = parsed_messages(span, Key.INPUT_MESSAGES) + parsed_messages(span, Key.OUTPUT_MESSAGES)
        tools = parsed_messages(span, Key.TOOL_DEFINITIONS)
    except ValueError as error:
        logger.warning("LLM call %s of rollout %s has unreadable messages: %s", span.span_id, span.rollout_id, error)
        return None
    return OpenAIMessages(messages=messages, tools=tools or None)


_INPUT: Final = "agentlightning.operation.input"
_OUTPUT: Final = "agentlightning.operation.output"
_OTHER_NAMES: Final[Mapping[str, Sequence[str]]] = {
    Key.RESPONSE_ID: (f"{_OUTPUT}.id", "llm.hosted_vllm.id"),
    Key.PROMPT_TOKEN_IDS: (f"{_OUTPUT}.prompt_token_ids", "llm.hosted_vllm.prompt_token_ids"),
    Key.RESPONSE_TOKEN_IDS: (
        f"{_OUTPUT}.response_token_ids.0",
        f"{_OUTPUT}.choices.0.token_ids",
        f"{_OUTPUT}.choices.0.provider_specific_fields.token_ids",
        "llm.hosted_vllm.response_token_ids",
        "llm.hosted_vllm.choices",
    ),
}
"""Other names of what a call returned, the surest first."""


def as_ours(span: Span) -> Span:
    """Return the span with its tokens and its response id under our names; the same one where nothing is missing."""
    facts = span.attributes
    found: Attributes = {}
    if Key.RESPONSE_ID not in facts:
        found[Key.RESPONSE_ID] = next((facts[name] for name in _OTHER_NAMES[Key.RESPONSE_ID] if facts.get(name)), None)
    for key in (Key.PROMPT_TOKEN_IDS, Key.RESPONSE_TOKEN_IDS):
        if key not in facts or isinstance(facts[key], str):
            found[key] = next((ids for name in (key, *_OTHER_NAMES[key]) if (ids := _ids(facts.get(name)))), None)
    found = {key: value for key, value in found.items() if value is not None}
    return span.model_copy(update={"attributes": {**facts, **found}}) if found else span


def prompt_of(span: Span) -> Any:
    """Return the messages that a call was sent, as its instrumentation kept them; an empty list where there are none.

    They are a dictionary by number where the instrumentation put other facts beside them.
    """
    return nested(span.attributes, "gen_ai.prompt") or nested(span.attributes, f"{_INPUT}.messages") or []


def completion_of(span: Span) -> Any:
    """Return the messages that a call returned, likewise."""
    return nested(span.attributes, "gen_ai.completion") or nested(span.attributes, f"{_OUTPUT}.choices") or []


def request_of(span: Span) -> dict[str, Any]:
    """Return the settings of a call (`model`, `temperature`, `functions`), without its messages."""
    return _facts(span, "gen_ai.request", _INPUT, ("messages",))


def response_of(span: Span) -> dict[str, Any]:
    """Return what a call's answer said of itself (`id`, `model`, `finish_reasons`), without messages and tokens."""
    return _facts(span, "gen_ai.response", _OUTPUT, ("choices", "prompt_token_ids", "response_token_ids"))


def _facts(span: Span, prefix: str, other_prefix: str, without: Sequence[str]) -> dict[str, Any]:
    found = nested(span.attributes, prefix) or nested(span.attributes, other_prefix)
    return {key: value for key, value in found.items() if key not in without} if isinstance(found, dict) else {}


def nested(attributes: Mapping[str, Any], prefix: str) -> Any:
    """Put the attributes below `prefix` together: `{"p.0.role": "user"}` is `[{"role": "user"}]` below `p`.

    Names that are exactly 0, 1, … make a list, any others a dictionary; without an attribute it is empty.
    """
    start = f"{prefix}."
    below = {name.removeprefix(start): value for name, value in attributes.items() if name.startswith(start)}
    return unflatten_attributes(below)


def _ids(value: Any) -> list[int] | None:
    """Return token ids out of a list, its text, a list of choices, or the text of one; the first choice counts."""
    if isinstance(value, str):
        value = _parsed(value)
    if isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
        value = value[0].get("token_ids")
    elif isinstance(value, list | tuple) and value and isinstance(value[0], list):
        value = value[0]
    if not isinstance(value, list | tuple) or not value or not all(type(item) is int for item in value):
        return None
    return list(value)


def _parsed(text: str) -> Any:
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return None


def openai_messages(span: Span, tool_spans: Sequence[Span]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a call's messages, the answer last, and the tools that it offered, as OpenAI writes them.

    Args:
        span: the call.
        tool_spans: spans of the tools that its answer called, which name them where the answer does not.
    """
    messages = [_message(message) for message in _listed(prompt_of(span))]
    for answer in _listed(completion_of(span)):
        if answer.get("role", "assistant") == "assistant":
            calls = [call for child in tool_spans if (call := _tool_call(nested(child.attributes, "tool")))]
            message = _message({"role": "assistant", **answer})
            if calls and "tool_calls" not in message:
                message |= {"content": message["content"] or None, "tool_calls": calls}
            messages.append(message)
    tools = [_tool(function) for function in _listed(request_of(span).get("functions"))]
    return messages, tools


def _listed(messages: Any) -> list[dict[str, Any]]:
    if isinstance(messages, dict):  # other facts stand beside the numbered ones
        messages = [messages[number] for number in sorted(filter(str.isdigit, messages), key=int)]
    return [message for message in messages or () if isinstance(message, dict)]


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = [_tool_call(call) for call in _listed(message.get("tool_calls"))]
    made = {"role": message.get("role"), "content": message.get("content", None if calls else "")}
    if message.get("tool_call_id"):
        made["tool_call_id"] = message["tool_call_id"]
    return {**made, "tool_calls": calls} if calls else made


def _tool_call(facts: Any) -> dict[str, Any]:
    """Return a tool call out of `{"id", "name", "arguments"}`, or of the attributes of a tool's span."""
    if not isinstance(facts, dict) or not facts.get("name"):
        return {}
    call = facts.get("call")
    call_id = call.get("id") if isinstance(call, dict) else facts.get("id")
    arguments = facts.get("arguments", facts.get("parameters", "{}"))
    return {"id": call_id, "type": "function", "function": {"name": facts["name"], "arguments": arguments}}


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    parameters = function.get("parameters", {})
    parsed = _parsed(parameters) if isinstance(parameters, str) else parameters
    described = {"name": function.get("name"), "description": function.get("description", ""), "parameters": parsed}
    return {"type": "function", "function": described}


SHOWN: Final = 20_000
"""Characters of one text that are sent to a page; the number of the others is sent beside them."""


class Text(TypedDict):
    """A text, or its beginning."""

    text: str
    more: int
    """Number of characters that were left out."""


class ToldToolCall(TypedDict):
    """A call of a tool within a message."""

    name: Text
    arguments: Text
    id: str | None


class Message(TypedDict):
    """One message."""

    role: str
    content: Text
    calls: list[ToldToolCall]
    answers: str | None
    """Id of the tool call that it answers."""


class ToldConversation(TypedDict):
    """Messages in order."""

    attempt: str
    messages: list[Message]
    calls: int
    """Number of LLM calls that it was made in."""
    tools: list[str]
    """Names of the tools that it offered."""


def conversations(spans: Sequence[Span], *, shown: int = SHOWN) -> list[ToldConversation]:
    """Return the conversations of the attempts among the spans, in order.

    A call whose messages begin with all of an earlier one's goes on with that one; any other begins a new one, as after
    a fork or by another agent.
    """
    attempts = dict.fromkeys(span.attempt_id for span in spans)
    found: list[ToldConversation] = []
    for attempt in attempts:
        threads: list[tuple[list[Any], int, list[str]]] = []
        for row in TraceToMessages().adapt([span for span in spans if span.attempt_id == attempt]):
            messages = row["messages"]
            names = [_tool_name(tool) for tool in row["tools"] or ()]
            before = next((i for i, (old, _, _) in enumerate(threads) if _goes_on(messages, old)), None)
            if before is None:
                threads.append((messages, 1, names))
            else:
                threads[before] = (messages, threads[before][1] + 1, names)
        for messages, calls, names in threads:
            shaped = [_shown_message(message, shown) for message in messages]
            found.append(ToldConversation(attempt=attempt, messages=shaped, calls=calls, tools=names))
    return found


def text_of(value: Any, shown: int = SHOWN) -> Text:
    """Return any value as a text: itself, the texts of a list of parts, or JSON."""
    if isinstance(value, list) and all(isinstance(part, Mapping) for part in value):
        value = "\n".join(str(part.get("text") or f"[{part.get('type')}]") for part in value)
    if value is None:
        value = ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return Text(text=text[:shown], more=max(0, len(text) - shown))


def _goes_on(messages: Sequence[Any], old: Sequence[Any]) -> bool:
    return len(messages) > len(old) and all(map(_alike, messages, old))


def _alike(one: Any, other: Any) -> bool:
    """Return True for one message in two spellings: clients leave out what is empty when they send it again."""
    if one == other or not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return bool(one == other)
    names = ("role", "content", "tool_call_id")
    return all((one.get(name) or None) == (other.get(name) or None) for name in names)


def _shown_message(message: Any, shown: int) -> Message:
    if not isinstance(message, Mapping):
        return Message(role="", content=text_of(message, shown), calls=[], answers=None)
    calls = message.get("tool_calls")
    answers = message.get("tool_call_id")
    return Message(
        role=str(message.get("role") or "")[:100],
        content=text_of(message.get("content"), shown),
        calls=[_shown_call(call, shown) for call in (calls if isinstance(calls, list) else ())],
        answers=None if answers is None else str(answers)[:200],
    )


def _shown_call(call: Any, shown: int) -> ToldToolCall:
    facts = call if isinstance(call, Mapping) else {}
    function = facts.get("function")
    function = function if isinstance(function, Mapping) else {}
    return ToldToolCall(
        name=text_of(function.get("name"), 200),
        arguments=text_of(function.get("arguments"), shown),
        id=None if facts.get("id") is None else str(facts["id"])[:200],
    )


def _tool_name(tool: Any) -> str:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    return str(function.get("name") if isinstance(function, Mapping) else "")[:200]
