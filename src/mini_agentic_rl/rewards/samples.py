"""What a reward function is given, sample by sample: a completion, its prompt and the other columns of its row.

A completion is text, or the messages that followed the prompt. Nothing that a model can write makes reading it fail.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Message: TypeAlias = Mapping[str, Any]
Conversation: TypeAlias = str | Sequence[Message]
"""Text, or OpenAI messages."""


@dataclass(frozen=True)
class Sample:
    """One completion to score."""

    completion: Conversation
    prompt: Conversation | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The fields of the sample's row by name, such as `ground_truth`."""

    @property
    def text(self) -> str:
        """The final answer: the text, or that of the last message; "" where that is none of the assistant's or calls a
        tool."""
        if isinstance(self.completion, str):
            return self.completion
        messages = as_messages(self.completion, "assistant")
        last = messages[-1] if messages else {}
        return "" if last.get("role", "assistant") != "assistant" or last.get("tool_calls") else message_text(last)

    @property
    def written(self) -> str:
        """Everything that the assistant wrote, line by line."""
        texts = [message_text(message) for message in self.messages if message.get("role", "assistant") == "assistant"]
        return "\n".join(text for text in texts if text)

    @property
    def messages(self) -> list[Message]:
        """The completion as messages."""
        return as_messages(self.completion, "assistant")

    @property
    def question(self) -> str:
        """The prompt as text; several messages with their roles."""
        messages = as_messages(self.prompt or "", "user")
        if len(messages) == 1:
            return message_text(messages[0])
        return "\n\n".join(f"{message.get('role', 'user')}: {message_text(message)}" for message in messages)


def samples_of(completions: Sequence[Any], prompts: Sequence[Any] | None, columns: Mapping[str, Any]) -> list[Sample]:
    """One sample for each completion. A column that is no list of as many values holds for all of them."""
    count = len(completions)
    listed = {name: value for name, value in columns.items() if isinstance(value, list | tuple) and len(value) == count}
    shared = {name: value for name, value in columns.items() if name not in listed}
    return [
        Sample(
            completion if isinstance(completion, str) else as_messages(completion, "assistant"),
            None if prompts is None else prompts[at],
            {**shared, **{name: values[at] for name, values in listed.items()}},
        )
        for at, completion in enumerate(completions)
    ]


def as_messages(value: Any, role: str) -> list[Message]:
    """Messages out of messages, one message or text; `role` is that of text. What is neither is left out."""
    if value is None or value == "":
        return []
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if isinstance(value, Mapping):
        return [value]
    if not isinstance(value, Sequence):
        return [{"role": role, "content": str(value)}]
    return [item if isinstance(item, Mapping) else {"role": role, "content": str(item)} for item in value]


def message_text(message: Message) -> str:
    """The text of a message, its parts joined; "" without any."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return ""
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
    return "".join(text for text in texts if isinstance(text, str))


def group_key(sample: Sample) -> str:
    """What the samples of one group have in common: the `id` of their row, else their prompt."""
    identity = sample.columns.get("id")
    if identity is not None:
        return f"id {identity}"
    return sample.prompt if isinstance(sample.prompt, str) else json.dumps(sample.prompt, sort_keys=True, default=str)


def encodable(text: str) -> str:
    """The text with a question mark for each half of a surrogate pair, which no JSON body can carry."""
    return text.encode("utf-8", "replace").decode("utf-8")
