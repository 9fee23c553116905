"""One stored span under the names of OpenTelemetry's conventions for generative AI: its name, kind and attributes.

| stored span | exported as |
|---|---|
| a call that the gateway recorded, or a tracer of `openai` | `chat {model}`, a client's span |
| an operation, or a span of LangChain, that names its agent | `invoke_agent {agent}` |
| a tool's span, and an operation that has the name of a tool | `execute_tool {tool}` |
| anything else | its own name, or that of its operation |

Other instrumentations' attributes go along as they are. Attributes of ours stand below `agentlightning.`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...adapter import openai_messages
from ...semconv import AGL_OPERATION, LightningSpanAttributes
from ...semconv import CompletionSpanAttributes as Stored
from ...semconv import GenAiAttributes as Gen
from ...types import Attributes, Span
from .parts import as_json, cut, input_messages, output_messages, read_messages

PROVIDER: Final = "mini-agentic-rl"
"""Provider of what has no other: the models that are trained here, and the agents that ask them."""

_TOKENS: Final = {
    Stored.PROMPT_TOKEN_IDS: "agentlightning.prompt_token_ids",
    Stored.RESPONSE_TOKEN_IDS: "agentlightning.response_token_ids",
    Stored.RESPONSE_LOGPROBS: "agentlightning.response_logprobs",
    Stored.RESPONSE_FORCED_POSITIONS: "agentlightning.response_forced_positions",
    Stored.POLICY_VERSIONS: "agentlightning.policy_versions",
}
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
"""Attributes, and beginnings of their names, that hold what was said and done."""


@dataclass(frozen=True)
class ExportedContent:
    """Parts of spans that are left out unless they are asked for."""

    messages: bool = True
    """Messages, arguments and results."""
    tokens: bool = False
    """Token ids and log-probabilities."""


@dataclass(frozen=True)
class SpokenCall:
    """The messages of one LLM call, of the chat API."""

    asked: Sequence[Mapping[str, Any]]
    answered: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]


def is_token_fact(name: str) -> bool:
    """Return True if an attribute of this name holds a number for each token."""
    return name in _TOKENS


def is_call(span: Span) -> bool:
    """Return True if the span is that of an LLM call."""
    return span.name == Stored.SPAN_NAME or span.attributes.get(Gen.OPERATION) == Gen.CHAT


def is_tool(span: Span, tools: Collection[str]) -> bool:
    """Return True if the span is that of a tool, by its attributes or because it has the name of one of `tools`."""
    named = span.attributes.get(Gen.TOOL_NAME) or span.attributes.get(Gen.OPERATION) == Gen.EXECUTE_TOOL
    return bool(named) or (span.name == AGL_OPERATION and span.attributes.get(_OPERATION_NAME) in tools)


def read_call(span: Span) -> SpokenCall:
    """Return the messages of a call, from whichever attributes its recorder keeps them in."""
    facts = span.attributes
    if Stored.INPUT_MESSAGES in facts or Stored.OUTPUT_MESSAGES in facts:
        asked, answered, tools = (
            read_messages(facts.get(key))
            for key in (Stored.INPUT_MESSAGES, Stored.OUTPUT_MESSAGES, Gen.TOOL_DEFINITIONS)
        )
        return SpokenCall(asked, answered, tools)
    messages, tools = openai_messages(span, ())
    split = len(messages)
    while split and messages[split - 1].get("role") == "assistant":
        split -= 1
    return SpokenCall(messages[:split], messages[split:], tools)


def described(
    span: Span, call: SpokenCall | None, tools: Collection[str], content: ExportedContent
) -> tuple[str, Attributes]:
    """Return the name of the exported span, and its attributes.

    Args:
        span: the stored span.
        call: its messages, if it is a call.
        tools: names of the tools that the attempt's calls offered.
        content: what goes along.
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


def _chat(span: Span, call: SpokenCall, facts: Attributes, content: ExportedContent) -> tuple[str, Attributes]:
    model = str(facts.get(Gen.REQUEST_MODEL) or facts.get(Gen.RESPONSE_MODEL) or "")
    reasons = facts.get(Gen.FINISH_REASONS) or [
        span.attributes.get(f"gen_ai.completion.{number}.finish_reason", "stop") for number in range(len(call.answered))
    ]
    facts = {
        **facts,
        Gen.OPERATION: Gen.CHAT,
        Gen.PROVIDER: facts.get(Gen.PROVIDER) or PROVIDER,
        Gen.FINISH_REASONS: [str(reason) for reason in reasons],
    }
    if content.messages:
        facts[Gen.INPUT_MESSAGES] = as_json(input_messages(call.asked))
        facts[Gen.OUTPUT_MESSAGES] = as_json(output_messages(call.answered, facts[Gen.FINISH_REASONS]))
        if call.tools:
            facts[Gen.TOOL_DEFINITIONS] = as_json([_definition(tool) for tool in call.tools])
    return f"{Gen.CHAT} {model}".rstrip(), facts


def _definition(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definition of a tool, whose function the chat API has one level further down."""
    function = tool.get("function")
    return {"type": "function", **function} if isinstance(function, Mapping) else dict(tool)


def _tool(span: Span, facts: Attributes, content: ExportedContent) -> tuple[str, Attributes]:
    name = str(facts.get(Gen.TOOL_NAME) or span.attributes.get(_OPERATION_NAME) or span.name)
    found = {Gen.OPERATION: Gen.EXECUTE_TOOL, Gen.TOOL_NAME: name, Gen.TOOL_TYPE: "function"}
    if content.messages:
        inputs = _below(span.attributes, _OPERATION_INPUT)
        output = _below(span.attributes, _OPERATION_OUTPUT)
        if inputs is not None:
            found[Gen.TOOL_ARGUMENTS] = _text(inputs)
        if output is not None:
            found[Gen.TOOL_RESULT] = _text(output)
    return f"{Gen.EXECUTE_TOOL} {name}", {**found, **facts}


def _below(facts: Mapping[str, Any], name: str) -> Any:
    """Return the attribute, else those below its name together; None where there are neither."""
    if name in facts:
        return facts[name]
    start = f"{name}."
    return {key.removeprefix(start): value for key, value in facts.items() if key.startswith(start)} or None


def _text(value: Any) -> str:
    return cut(value if isinstance(value, str) else as_json(value))


def _plain(attributes: Attributes, content: ExportedContent) -> Attributes:
    """Return the attributes that go along as they are, or under another name."""
    found: Attributes = {}
    for name, value in attributes.items():
        if name in _REPLACED or name.startswith(_REPLACED_BELOW) or value is None:
            continue
        if name == Stored.SYSTEM:
            found.setdefault(Gen.PROVIDER, str(value).lower())
        elif name in _TOKENS:
            if content.tokens:
                found[_TOKENS[name]] = value
        elif content.messages or not name.startswith(_CONTENT):
            found[_RENAMED.get(name, name)] = cut(value) if isinstance(value, str) else value
    return found
