"""Messages that several tests use."""

from __future__ import annotations

CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Evaluate arithmetic.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
            "additionalProperties": False,
        },
    },
}

CALL_TEXT = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "12+30"}}\n</tool_call>'


def call_message(arguments: str = '{"expression": "12+30"}', content: str | None = None) -> dict:
    """An assistant message that calls the calculator."""
    call = {"id": "call_1", "type": "function", "function": {"name": "calculate", "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def result_message(content: str = "42") -> dict:
    """The calculator's answer."""
    return {"role": "tool", "tool_call_id": "call_1", "content": content}


def three_turns() -> list[dict]:
    """A conversation with three assistant turns, one of them a tool call."""
    return [
        {"role": "system", "content": "Be terse."},
        {"role": "user", "content": "12+30?"},
        call_message(),
        result_message(),
        {"role": "assistant", "content": "The answer is 42."},
        {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": "Yes."},
    ]
