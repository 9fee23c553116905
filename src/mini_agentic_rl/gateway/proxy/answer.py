"""What an upstream answered to a chat request, gathered from one JSON body or from a stream of chunks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class UpstreamChoice:
    """One answer of several."""

    message: dict[str, Any] = field(default_factory=lambda: {"role": "assistant", "content": None})
    finish_reason: str | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def add(self, delta: dict[str, Any]) -> None:
        """Take the `delta` of a chunk: text is joined, and so are the arguments of tool calls."""
        for key, value in delta.items():
            if key == "tool_calls":
                for part in value or ():
                    self._add_call(part)
            elif isinstance(value, str) and key != "role":
                self.message[key] = (self.message.get(key) or "") + value
            elif value is not None:
                self.message[key] = value

    def _add_call(self, part: dict[str, Any]) -> None:
        calls = self.message.setdefault("tool_calls", [])
        index = part.get("index", len(calls))
        while len(calls) <= index:
            calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        call, function = calls[index], part.get("function") or {}
        call["id"] = part.get("id") or call["id"]
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""


@dataclass
class UpstreamAnswer:
    """A whole answer, or what has come of it."""

    response_id: str = ""
    model: str = ""
    prompt_ids: list[int] = field(default_factory=list)
    choices: dict[int, UpstreamChoice] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)

    def take(self, part: dict[str, Any]) -> None:
        """Read a whole answer or a chunk."""
        self.response_id = part.get("id") or self.response_id
        self.model = part.get("model") or self.model
        self.prompt_ids = _ids(part.get("prompt_token_ids")) or self.prompt_ids
        self.usage = part.get("usage") or self.usage
        for item in part.get("choices") or ():
            if isinstance(item, dict):
                self._take_choice(item)

    def _take_choice(self, item: dict[str, Any]) -> None:
        choice = self.choices.setdefault(int(item.get("index") or 0), UpstreamChoice())
        if isinstance(item.get("message"), dict):
            choice.message = {
                key: value for key, value in item["message"].items() if value is not None or key == "content"
            }
        if isinstance(item.get("delta"), dict):
            choice.add(item["delta"])
        choice.finish_reason = item.get("finish_reason") or choice.finish_reason
        choice.token_ids += _ids(item.get("token_ids"))
        logprobs = item.get("logprobs")
        if isinstance(logprobs, dict):
            choice.logprobs += [float(entry["logprob"]) for entry in logprobs.get("content") or ()]


def _ids(value: Any) -> list[int]:
    return [int(number) for number in value] if isinstance(value, list) else []
