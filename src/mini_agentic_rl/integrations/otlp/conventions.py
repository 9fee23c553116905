"""One stored span under the names of OpenTelemetry's conventions for generative AI: its name, kind and attributes.

| stored span | exported as |
|---|---|
| a call that the gateway recorded, or a tracer of `openai` | `chat {model}`, a client's span |
| an operation, or a span of LangChain, that names its agent | `invoke_agent {agent}` |
| a tool's span, and an operation that has the name of a tool | `execute_tool {tool}` |
| anything else | its own name, or that of its operation |

Attributes of other instrumentations are kept. Attributes of this package begin with `agentlightning.`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...adapter import openai_messages
from ...semconv import AGL_OPERATION, LightningSpanAttributes
from ...semconv import CompletionSpanAttributes as Stored
from ...semconv import GenAiAttributes as Gen
from ...types import Attributes, Span

# Chat messages in parts, as OpenTelemetry's conventions for generative AI have them.
#
# A message of the chat API, `{"role", "content", "tool_calls"}`, becomes `{"role", "parts": [...]}`; texts are cut at a
# bound, since collectors refuse large requests and each call repeats the conversation before it.


LONGEST_TEXT: Final = 32_768
"""Maximum characters of one text; longer ones are cut, with a note."""
LONGEST_JSON: Final = 4_000_000
"""Maximum characters of stored messages; longer ones are not parsed."""

_FINISH_REASONS: Final = {"tool_calls": "tool_call", "function_call": "tool_call", "cancelled": "error"}
_THINKING: Final = ("reasoning_content", "reasoning")


def read_messages(text: Any) -> list[dict[str, Any]]:
    """Parse messages of the chat API; an empty list if the text is too long or not JSON."""
    if not isinstance(text, str) or len(text) > LONGEST_JSON:
        return []
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [message for message in (value if isinstance(value, list) else [value]) if isinstance(message, dict)]


def input_messages(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the input messages of a call, in parts."""
    return [{"role": str(message.get("role") or "user"), "parts": message_parts(message)} for message in messages]


def output_messages(messages: Iterable[Mapping[str, Any]], finish_reasons: Sequence[str]) -> list[dict[str, Any]]:
    """Return the answers of a call, in parts, each with its finish reason."""
    answers = []
    for number, message in enumerate(messages):
        reason = str(finish_reasons[number]) if number < len(finish_reasons) else "stop"
        answers.append(
            {
                "role": str(message.get("role") or "assistant"),
                "parts": message_parts(message),
                "finish_reason": _FINISH_REASONS.get(reason, reason),
            }
        )
    return answers


def message_parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of one message: reasoning, texts, tool calls, or a tool result. Existing parts are kept."""
    if isinstance(message.get("parts"), list):
        return list(message["parts"])
    if message.get("role") == "tool":
        result = "".join(str(part.get("content", "")) for part in _contents(message.get("content")))
        return [_filled({"type": "tool_call_response", "id": message.get("tool_call_id"), "response": cut(result)})]
    thoughts = [message[name] for name in _THINKING if isinstance(message.get(name), str) and message[name]]
    parts = [{"type": "reasoning", "content": cut(thought)} for thought in thoughts[:1]]
    parts += _contents(message.get("content"))
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            arguments = tool_arguments(function.get("arguments"))
            name = str(function.get("name") or "")
            parts.append(_filled({"type": "tool_call", "id": call.get("id"), "name": name, "arguments": arguments}))
    return parts


def tool_arguments(given: Any) -> Any:
    """Return the arguments of a tool call, parsed if they are JSON, else as text."""
    if not isinstance(given, str):
        return given
    if len(given) > LONGEST_TEXT:
        return cut(given)
    try:
        return json.loads(given)
    except (ValueError, RecursionError):
        return given


def cut(text: str) -> str:
    """Truncate a text, and append how much is missing."""
    left = len(text) - LONGEST_TEXT
    return text if left <= 0 else f"{text[:LONGEST_TEXT]}… ({left:,} more characters are not exported)"


def as_json(value: Any) -> str:
    """Return JSON text without spaces; values of other types become text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def _contents(content: Any) -> list[dict[str, Any]]:
    if content is None or content == "":
        return []
    if not isinstance(content, list):
        return [{"type": "text", "content": cut(content if isinstance(content, str) else as_json(content))}]
    return [_content(part) for part in content]


def _content(part: Any) -> dict[str, Any]:
    if not isinstance(part, Mapping):
        return {"type": "text", "content": cut(str(part))}
    kind = str(part.get("type") or "text")
    if isinstance(part.get("text"), str):
        return {"type": "text", "content": cut(part["text"])}
    if kind == "image_url":
        image = part.get("image_url")
        address = str(image.get("url") if isinstance(image, Mapping) else image)
        if not address.startswith("data:"):
            return {"type": "uri", "modality": "image", "uri": cut(address)}
    return {"type": kind, "content": f"{len(as_json(part)):,} characters of {kind} are not exported"}


def _filled(part: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if value is not None}


PROVIDER: Final = "mini-agentic-rl"
"""Provider of the trained models and of their agents."""

TOKEN_NAMES: Final = {
    Stored.PROMPT_TOKEN_IDS: "agentlightning.prompt_token_ids",
    Stored.RESPONSE_TOKEN_IDS: "agentlightning.response_token_ids",
    Stored.RESPONSE_LOGPROBS: "agentlightning.response_logprobs",
    Stored.RESPONSE_FORCED_POSITIONS: "agentlightning.response_forced_positions",
    Stored.POLICY_VERSIONS: "agentlightning.policy_versions",
}
"""Attributes with one number per token, and their exported names."""
_RENAMED: Final = {
    Stored.POLICY_VERSION: "agentlightning.policy_version",
    Stored.CHOICE_INDEX: "agentlightning.choice_index",
    "gen_ai.usage.prompt_tokens": Gen.INPUT_TOKENS,
    "gen_ai.usage.completion_tokens": Gen.OUTPUT_TOKENS,
    "gen_ai.request.max_completion_tokens": Gen.REQUEST_MAX_TOKENS,
}
_REPLACED: Final = (
    Stored.INPUT_MESSAGES,
    Stored.OUTPUT_MESSAGES,
    Stored.TOOL_DEFINITIONS,
    "gen_ai.request.type",
    "gen_ai.request.streaming",
    "gen_ai.response.system_fingerprint",
    "gen_ai.usage.total_tokens",
)
_REPLACED_BELOW: Final = ("gen_ai.prompt.", "gen_ai.completion.", "gen_ai.request.functions.")
_OPERATION_NAME: Final = LightningSpanAttributes.OPERATION_NAME.value
_OPERATION_INPUT: Final = LightningSpanAttributes.OPERATION_INPUT.value
_OPERATION_OUTPUT: Final = LightningSpanAttributes.OPERATION_OUTPUT.value
_CONTENT: Final = (
    _OPERATION_INPUT,
    _OPERATION_OUTPUT,
    LightningSpanAttributes.MESSAGE_BODY.value,
    LightningSpanAttributes.OBJECT_JSON.value,
    LightningSpanAttributes.OBJECT_LITERAL.value,
)
"""Names and prefixes of attributes with messages, arguments and results."""


@dataclass(frozen=True)
class ExportedContent:
    """The optional parts of exported spans."""

    messages: bool = True
    """Messages, arguments and results."""
    tokens: bool = False
    """Token ids and log-probabilities."""


@dataclass(frozen=True)
class ChatCall:
    """The messages of one LLM call, in the form of the chat API."""

    inputs: Sequence[Mapping[str, Any]]
    outputs: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]


def is_call(span: Span) -> bool:
    """Return True if the span is that of an LLM call."""
    return span.name == Stored.SPAN_NAME or span.attributes.get(Gen.OPERATION) == Gen.CHAT


def is_tool(span: Span, tools: Collection[str]) -> bool:
    """Return True if the span is that of a tool, by its attributes or because it has the name of one of `tools`."""
    named = span.attributes.get(Gen.TOOL_NAME) or span.attributes.get(Gen.OPERATION) == Gen.EXECUTE_TOOL
    return bool(named) or (span.name == AGL_OPERATION and span.attributes.get(_OPERATION_NAME) in tools)


def read_call(span: Span) -> ChatCall:
    """Return the messages of a call; each recorder stores them in other attributes."""
    facts = span.attributes
    if Stored.INPUT_MESSAGES in facts or Stored.OUTPUT_MESSAGES in facts:
        inputs, outputs, tools = (
            read_messages(facts.get(key))
            for key in (Stored.INPUT_MESSAGES, Stored.OUTPUT_MESSAGES, Gen.TOOL_DEFINITIONS)
        )
        return ChatCall(inputs, outputs, tools)
    messages, tools = openai_messages(span, ())
    split = len(messages)
    while split and messages[split - 1].get("role") == "assistant":
        split -= 1
    return ChatCall(messages[:split], messages[split:], tools)


def described(
    span: Span, call: ChatCall | None, tools: Collection[str], content: ExportedContent
) -> tuple[str, Attributes]:
    """Return the name of the exported span, and its attributes.

    Args:
        span: the stored span.
        call: its messages, if it is a call.
        tools: names of the tools that the attempt's calls offered.
        content: optional parts to include.
    """
    facts = _plain(span.attributes, content)
    if call is not None:
        return _chat(span, call, facts, content)
    if is_tool(span, tools):
        return _tool(span, facts, content)
    operation = str(span.attributes.get(_OPERATION_NAME) or "") if span.name == AGL_OPERATION else ""
    agent = span.attributes.get(Gen.AGENT_NAME)
    if agent and (operation or Gen.OPERATION in facts or "langchain.chain.type" in facts):
        facts = {Gen.OPERATION: Gen.INVOKE_AGENT, Gen.PROVIDER: PROVIDER, **facts}
        return (f"{Gen.INVOKE_AGENT} {agent}" if facts[Gen.OPERATION] == Gen.INVOKE_AGENT else span.name), facts
    return operation or span.name, facts


def _chat(span: Span, call: ChatCall, facts: Attributes, content: ExportedContent) -> tuple[str, Attributes]:
    model = str(facts.get(Gen.REQUEST_MODEL) or facts.get(Gen.RESPONSE_MODEL) or "")
    reasons = facts.get(Gen.FINISH_REASONS) or [
        span.attributes.get(f"gen_ai.completion.{number}.finish_reason", "stop") for number in range(len(call.outputs))
    ]
    facts = {
        **facts,
        Gen.OPERATION: Gen.CHAT,
        Gen.PROVIDER: facts.get(Gen.PROVIDER) or PROVIDER,
        Gen.FINISH_REASONS: [str(reason) for reason in reasons],
    }
    if content.messages:
        facts[Gen.INPUT_MESSAGES] = as_json(input_messages(call.inputs))
        facts[Gen.OUTPUT_MESSAGES] = as_json(output_messages(call.outputs, facts[Gen.FINISH_REASONS]))
        if call.tools:
            functions = [(tool, tool.get("function")) for tool in call.tools]  # nested, as the chat API has them
            facts[Gen.TOOL_DEFINITIONS] = as_json(
                [{"type": "function", **inner} if isinstance(inner, Mapping) else tool for tool, inner in functions]
            )
    return f"{Gen.CHAT} {model}".rstrip(), facts


def _tool(span: Span, facts: Attributes, content: ExportedContent) -> tuple[str, Attributes]:
    name = str(facts.get(Gen.TOOL_NAME) or span.attributes.get(_OPERATION_NAME) or span.name)
    standard = {Gen.OPERATION: Gen.EXECUTE_TOOL, Gen.TOOL_NAME: name, Gen.TOOL_TYPE: "function"}
    if content.messages:
        inputs = _below(span.attributes, _OPERATION_INPUT)
        output = _below(span.attributes, _OPERATION_OUTPUT)
        if inputs is not None:
            standard[Gen.TOOL_ARGUMENTS] = _text(inputs)
        if output is not None:
            standard[Gen.TOOL_RESULT] = _text(output)
    return f"{Gen.EXECUTE_TOOL} {name}", {**standard, **facts}


def _below(facts: Mapping[str, Any], name: str) -> Any:
    """Return the attribute, else those below its name as a dictionary; None if there are neither."""
    if name in facts:
        return facts[name]
    start = f"{name}."
    return {key.removeprefix(start): value for key, value in facts.items() if key.startswith(start)} or None


def _text(value: Any) -> str:
    return cut(value if isinstance(value, str) else as_json(value))


def _plain(attributes: Attributes, content: ExportedContent) -> Attributes:
    """Return the exported attributes under the names of the conventions."""
    exported: Attributes = {}
    for name, value in attributes.items():
        if name in _REPLACED or name.startswith(_REPLACED_BELOW) or value is None:
            continue
        if name == Stored.SYSTEM:
            exported.setdefault(Gen.PROVIDER, str(value).lower())
        elif name in TOKEN_NAMES:
            if content.tokens:
                exported[TOKEN_NAMES[name]] = value
        elif content.messages or not name.startswith(_CONTENT):
            exported[_RENAMED.get(name, name)] = cut(value) if isinstance(value, str) else value
    return exported
