"""Messages to token ids, through the tokenizer's own chat template.

A conversation that goes on is never encoded again: `continuation` gives the ids to append to what was recorded.
Where the template has no form for tools that the gateway can read back, tools, calls and results are put into
ordinary turns in the Hermes form. What the template can do is found out by rendering small probes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from mini_agentic_rl.tokens import CompletionRecord

from .errors import BadRequestError
from .messages import Message, Tool, plain_messages
from .tool_calls import split_tool_calls, tools_section
from .turns import assistant_text, keeps, merged, ordinary_turn, system_into_user, with_system_text

ToolFormat = Literal["hermes"]

_MARK = "m4rk"
_USER = {"role": "user", "content": "hi"}
_PROBE_CALL = {"id": "c", "type": "function", "function": {"name": "probe", "arguments": {"x": 1}}}
_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": _MARK,
        "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
    },
}


class Tokenizer(Protocol):
    """What is used of a Hugging Face tokenizer."""

    chat_template: Any
    eos_token: str | None
    eos_token_id: int | None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...
    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...
    def __len__(self) -> int: ...
    def get_added_vocab(self) -> dict[str, int]: ...
    def apply_chat_template(
        self,
        conversation: list[dict[str, Any]],
        *,
        tools: list[Any] | None,
        chat_template: str,
        add_generation_prompt: bool,
        tokenize: bool,
    ) -> Any: ...


class ChatRenderer:
    """Renders conversations for one tokenizer.

    Args:
        tokenizer: a Hugging Face tokenizer. Without a chat template it gets ChatML.
        tool_format: how tool calls are written; "hermes" is `<tool_call>{json}</tool_call>`.
        extra_eos_ids: further ids that end a turn, e.g. those of the model's generation config.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, tool_format: ToolFormat = "hermes", extra_eos_ids: Sequence[int] = ()
    ) -> None:
        if tool_format != "hermes":
            raise ValueError(f"tool_format must be 'hermes', not {tool_format!r}")
        self.tokenizer = tokenizer
        self.tool_format = tool_format
        self._template = _template_of(tokenizer)
        self._system_role = self._probe([{"role": "system", "content": _MARK}, _USER])
        self._alternating = not self._probe([_USER, {"role": "user", "content": _MARK}])
        self._tool_role = self._accepts_tool_role()
        self._native_tools = self._accepts_tools()
        self._end_text, self.end_of_turn_id = self._find_end_of_turn()
        self._lead = self._find_lead()
        found = [self.end_of_turn_id, tokenizer.eos_token_id, *extra_eos_ids]
        self.eos_ids: tuple[int, ...] = tuple(dict.fromkeys(id_ for id_ in found if id_ is not None))
        """Ids that end a turn; the first is the one that the template writes."""

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None = None, add_generation_prompt: bool = True
    ) -> list[int]:
        """Token ids of the whole conversation.

        Raises:
            BadRequestError: the messages are malformed, or the chat template refuses them.
        """
        return self.encode(self._text(plain_messages(messages), tools, add_generation_prompt))

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; the names of special tokens become those tokens."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def continuation(
        self,
        previous_messages: Sequence[Message],
        new_messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        *,
        ended: bool = True,
    ) -> list[int] | None:
        """The ids that carry a recorded conversation on to the next generation prompt.

        Args:
            previous_messages: the messages of the earlier call and, last, the assistant's answer to it.
            new_messages: what has been added since.
            tools: the tools of both calls.
            ended: whether the recorded output ends with the end-of-turn token; when not (length bound, stop string),
                that token leads the continuation.

        Returns:
            ids to append to the earlier call's prompt and output ids; None when the template rewrites history, so
            that the earlier call is no prefix of this one.

        Raises:
            BadRequestError: the messages are malformed, or the chat template refuses them.
        """
        previous = plain_messages(previous_messages)
        whole_text = self._text([*previous, *plain_messages(new_messages)], tools, True)
        if not self._end_text:
            previous_text = self._text(previous, tools, False)
            kept = whole_text.startswith(previous_text) and keeps(previous_text, previous[-1])
            return self.encode(whole_text[len(previous_text) :]) if kept else None
        prompt_text = self._text(previous[:-1], tools, True)
        if not whole_text.startswith(prompt_text):
            return None
        answer, end, rest = whole_text[len(prompt_text) :].partition(self._end_text)
        if not end or not keeps(answer, previous[-1]):
            return None
        return self.encode(rest if ended else end + rest)

    def assistant_text(self, message: Message) -> str:
        """What the model would have to emit to have said `message`, without the end-of-turn token."""
        return self._lead + assistant_text(plain_messages([message])[0])

    def conversation_to_records(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None = None
    ) -> list[CompletionRecord]:
        """A written conversation as if it had been sampled: one record for each assistant turn, log-probabilities 0.

        Each turn continues the turn before it token by token, as the gateway does, unless the template rewrites
        history.

        Raises:
            BadRequestError: the messages are malformed, or the chat template refuses them.
            ValueError: there is no assistant message.
        """
        records: list[CompletionRecord] = []
        last = -1
        end = [self.eos_ids[0]] if self.eos_ids else []
        for index, message in enumerate(messages):
            if message.get("role") != "assistant":
                continue
            prompt_ids: list[int] | None = None
            if records:
                added = self.continuation(messages[: last + 1], messages[last + 1 : index], tools)
                if added is not None:
                    prompt_ids = [*records[-1].prompt_ids.tolist(), *records[-1].output_ids.tolist(), *added]
            if prompt_ids is None:
                prompt_ids = self.render(messages[:index], tools)
            output_ids = self.encode(self.assistant_text(message)) + end
            records.append(
                CompletionRecord(
                    prompt_ids=np.asarray(prompt_ids, dtype=np.int64),
                    output_ids=np.asarray(output_ids, dtype=np.int64),
                    logprobs=np.zeros(len(output_ids), dtype=np.float32),
                    sequence_id=len(records) + 1,
                )
            )
            last = index
        if not records:
            raise ValueError("the conversation has no assistant message")
        return records

    def _text(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[Tool] | None, add_generation_prompt: bool
    ) -> str:
        if not messages:
            return ""
        native = self._native_tools
        turns = list(messages) if native else [ordinary_turn(message, self._tool_role) for message in messages]
        if tools and not native:
            turns = with_system_text(turns, tools_section(tools))
        if not self._system_role:
            turns = system_into_user(turns)
        if self._alternating or not native:
            turns = merged(turns, self._alternating)
        try:
            return self._apply(turns, tools if native else None, add_generation_prompt)
        except Exception as error:  # a chat template is foreign code and may raise anything
            raise BadRequestError(f"the model's chat template refuses this conversation: {error}") from error

    def _apply(self, turns: list[dict[str, Any]], tools: Sequence[Tool] | None, add_generation_prompt: bool) -> str:
        text = self.tokenizer.apply_chat_template(
            turns,
            tools=list(tools) if tools else None,
            chat_template=self._template,
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
        )
        return str(text)

    def _try(
        self, turns: list[dict[str, Any]], tools: Sequence[Tool] | None = None, add_generation_prompt: bool = False
    ) -> str:
        """A probe's text; empty when the template refuses it."""
        try:
            return self._apply(turns, tools, add_generation_prompt)
        except Exception:  # a chat template is foreign code and may raise anything
            return ""

    def _probe(self, turns: list[dict[str, Any]]) -> bool:
        return _MARK in self._try(turns)

    def _accepts_tool_role(self) -> bool:
        start = [_USER, {"role": "assistant", "content": "a"}]
        as_tool = self._try([*start, {"role": "tool", "content": _MARK}])
        as_assistant = self._try([*start, {"role": "assistant", "content": _MARK}])
        return _MARK in as_tool and as_tool != as_assistant

    def _accepts_tools(self) -> bool:
        """Whether the template itself shows tools, and writes calls so that the gateway reads them back."""
        call = {"role": "assistant", "content": "", "tool_calls": [_PROBE_CALL]}
        with_tools = self._try([_USER], [_PROBE_TOOL])
        with_call = self._try([_USER, call], [_PROBE_TOOL])
        with_result = self._try([_USER, call, {"role": "tool", "content": "r3sult"}], [_PROBE_TOOL])
        if _MARK not in with_tools or "r3sult" not in with_result or not with_call.startswith(with_tools):
            return False
        calls = split_tool_calls(with_call[len(with_tools) :])[1]
        return [(call.name, call.arguments) for call in calls] == [("probe", '{"x": 1}')]

    def _find_lead(self) -> str:
        """What the template writes between the generation prompt and the answer; nothing, as a rule."""
        before = self._try([_USER], add_generation_prompt=True)
        whole = self._try([_USER, {"role": "assistant", "content": _MARK}])
        return whole[len(before) : whole.rfind(_MARK)] if _MARK in whole and whole.startswith(before) else ""

    def _find_end_of_turn(self) -> tuple[str, int | None]:
        """The text from the end of an assistant's answer through the first special token after it, and its id."""
        text = self._try([_USER, {"role": "assistant", "content": _MARK}])
        tail = text[text.rfind(_MARK) + len(_MARK) :] if _MARK in text else ""
        known = dict(self.tokenizer.get_added_vocab())
        if self.tokenizer.eos_token and self.tokenizer.eos_token_id is not None:
            known[self.tokenizer.eos_token] = self.tokenizer.eos_token_id
        found = [(tail.find(token), -len(token), token) for token in known if token and token in tail]
        if not found:
            return "", None
        position, _, token = min(found)
        return tail[: position + len(token)], known[token]


def _template_of(tokenizer: Tokenizer) -> str:
    template = tokenizer.chat_template
    if isinstance(template, Mapping):
        template = template.get("default") or next(iter(template.values()), None)
    if template:
        return str(template)
    end = "<|im_end|>" if "<|im_end|>" in tokenizer.get_added_vocab() else tokenizer.eos_token or "<|im_end|>"
    return (
        "{% for message in messages %}"
        "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + END + '\\n' }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    ).replace("END", repr(end))
