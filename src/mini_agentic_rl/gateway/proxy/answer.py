"""The answer of an upstream to a chat request, gathered from one JSON body or from a stream of chunks.

Token ids are read wherever servers put them: vLLM and MiniLLMServer beside the choices (`prompt_token_ids`) and in each
choice (`token_ids`); SGLang in each choice, in the choice's `meta_info.output_token_logprobs` (log-probability, id,
text), or all at once in the last chunk's `sglext` (`input_ids`, and `output_ids` for each choice).
"""

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

    @property
    def tokens(self) -> tuple[int, int, int]:
        """Tokens of the prompt, those of them found in a cache, and tokens sampled, as far as the server tells."""
        details = self.usage.get("prompt_tokens_details") or {}
        sampled = sum(len(choice.token_ids) for choice in self.choices.values())
        return (
            int(self.usage.get("prompt_tokens") or len(self.prompt_ids)),
            int(details.get("cached_tokens") or 0),
            int(self.usage.get("completion_tokens") or sampled),
        )

    def take(self, part: dict[str, Any]) -> None:
        """Read a whole answer or a chunk.

        Raises:
            TypeError, ValueError, AttributeError: it is not of the form that chat completions have.
        """
        self.response_id = part.get("id") or self.response_id
        self.model = part.get("model") or self.model
        self.prompt_ids = _ids(part.get("prompt_token_ids")) or self.prompt_ids
        self.usage = part.get("usage") or self.usage
        for item in part.get("choices") or ():
            if isinstance(item, dict):
                self._take_choice(item)
        extension = part.get("sglext")
        if isinstance(extension, dict):
            self.prompt_ids = _ids(extension.get("input_ids")) or self.prompt_ids
            for index, ids in enumerate(extension.get("output_ids") or ()):
                self._choice(index).token_ids = _ids(ids)

    def _choice(self, index: int) -> UpstreamChoice:
        return self.choices.setdefault(index, UpstreamChoice())

    def _take_choice(self, item: dict[str, Any]) -> None:
        choice = self._choice(int(item.get("index") or 0))
        if isinstance(item.get("message"), dict):
            choice.message = {
                key: value for key, value in item["message"].items() if value is not None or key == "content"
            }
        if isinstance(item.get("delta"), dict):
            choice.add(item["delta"])
        choice.finish_reason = item.get("finish_reason") or choice.finish_reason
        self.prompt_ids = _ids(item.get("prompt_token_ids")) or self.prompt_ids
        choice.token_ids += _ids(item.get("token_ids")) or _sampled_ids(item.get("meta_info"))
        logprobs = item.get("logprobs")
        if isinstance(logprobs, dict):
            choice.logprobs += [float(entry["logprob"]) for entry in logprobs.get("content") or ()]


def _sampled_ids(meta_info: Any) -> list[int]:
    rows = meta_info.get("output_token_logprobs") if isinstance(meta_info, dict) else None
    return [int(row[1]) for row in rows or ()]


def _ids(value: Any) -> list[int]:
    return [int(number) for number in value] if isinstance(value, list) else []
