"""From messages to token ids, with the tokenizer's chat template.

A conversation is not encoded again when it continues: `continuation` returns the ids to append to the recorded ones. If
the template has no readable form for tools, then tools, calls and results become ordinary turns in the tool format.
"""

from __future__ import annotations

import inspect
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, get_args

import numpy as np

from ...http import BadRequestError
from ...tokens import CompletionRecord
from ..tool_formats import Tool, ToolFormatName
from .content import Content
from .decoding import ALL_TAGS, AnswerReader, Decoder, ThinkingName, ThoughtScanner, Tokenizer, kept_tool_format
from .messages import (
    Message,
    assistant_text,
    keeps,
    merged,
    ordinary_turn,
    plain_messages,
    separated,
    system_text_folded,
    with_short_ids,
    with_system_text,
    without_thought,
)
from .template import ChatTemplate

_MOST_SETTINGS = 16
"""Number of cached sets of template variables."""


class ChatRenderer:
    """Renders conversations for one tokenizer.

    Args:
        tokenizer: a Hugging Face tokenizer; without a chat template it gets ChatML.
        tool_format: how tool calls are written. "auto" takes the format that was saved with the tokenizer, or else that
            of the chat template, or else Hermes; "compact" takes the format with the fewest tokens instead of Hermes.
        thinking: treatment of thoughts; see `mini_agentic_rl.gateway.render.decoding`.
        extra_eos_ids: further ids that end a turn, e.g. of the model's generation config.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        tool_format: ToolFormatName = "auto",
        thinking: ThinkingName = "auto",
        extra_eos_ids: Sequence[int] = (),
    ) -> None:
        _check("tool_format", tool_format, get_args(ToolFormatName))
        _check("thinking", thinking, get_args(ThinkingName))
        self.tokenizer = tokenizer
        chosen = kept_tool_format(tokenizer) if tool_format == "auto" else tool_format
        self.template = ChatTemplate(tokenizer, chosen, thinking)
        self.settings: Mapping[str, Any] = {}
        """Variables of the template; see `with_settings`."""
        self._formats: tuple[ToolFormatName, ThinkingName] = (chosen, thinking)
        self._others: OrderedDict[str, ChatRenderer] = OrderedDict()
        self._lock = threading.Lock()
        self._content = Content(tokenizer, self.template.turns, ALL_TAGS)
        self.tool_format = self.template.tool_format
        """Writes and reads tool calls."""
        self.thinking: ThinkingName = thinking
        """The effective policy; never "auto"."""
        if thinking == "auto":
            self.thinking = "off" if self.template.tags is None else "fork"
        self.end_of_turn_id = self.template.end_id
        end_ids = [self.end_of_turn_id, tokenizer.eos_token_id, *extra_eos_ids]
        self.eos_ids: tuple[int, ...] = tuple(dict.fromkeys(id_ for id_ in end_ids if id_ is not None))
        """Ids that end a turn; the first is that of the template."""
        tags = self.template.tags
        shown = () if tags is None else (tags.open, tags.close)
        self._token_texts: dict[int, tuple[str, list[int] | None]] = {}
        self._decoder = Decoder(tokenizer, shown)
        self._decoder_with_calls = Decoder(tokenizer, (*shown, *self.tool_format.markers))

    def with_settings(self, settings: Mapping[str, Any]) -> ChatRenderer:
        """Return a renderer with these template variables; itself if the template uses none of them.

        Raises:
            BadRequestError: the server itself sets a variable of this name.
        """
        if not settings:
            return self
        reserved = inspect.signature(self.tokenizer.apply_chat_template).parameters
        for name in settings:
            if name == "messages" or name in reserved:
                field = f"chat_template_kwargs.{name}"
                raise BadRequestError(f"{field}: the server sets this itself", param=field)
        used = {
            name: value
            for name, value in settings.items()
            if re.search(rf"\b{re.escape(name)}\b", self.template.source)
        }
        if not used:
            return self
        key = json.dumps(used, sort_keys=True)
        with self._lock:
            renderer = self._others.get(key)
            if renderer is None:
                renderer = self._others[key] = copy(self)
                renderer.settings = used
                renderer.template = ChatTemplate(self.tokenizer, *self._formats, self._content.mark_all(used))
                if len(self._others) > _MOST_SETTINGS:
                    self._others.popitem(last=False)
            self._others.move_to_end(key)
        return renderer

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        add_generation_prompt: bool = True,
        *,
        most: int | None = None,
        plain: bool = False,
    ) -> list[int]:
        """Return the token ids of the whole conversation. Names of special tokens in messages are ordinary text.

        Args:
            messages: the conversation.
            tools: the offered tools.
            add_generation_prompt: open an answer at the end.
            most: maximum number of ids.
            plain: the messages are in the form that `plain` returns.

        Raises:
            BadRequestError: the messages are malformed, or the chat template refuses them.
            ContextLengthError: there are more than `most` ids.
        """
        conversation: Sequence[Any] = messages if plain else self.plain(messages)
        return self._content.encode(self._rendered(conversation, tools, add_generation_prompt), most)

    def count(self, messages: Sequence[Message], tools: Sequence[Tool] | None = None) -> int:
        """Return the number of token ids of `render`; raises BadRequestError as `render` does."""
        return self._content.count(self._rendered(self.plain(messages), tools, True))

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`, in which names of special tokens become those tokens."""
        return self._content.encode(text)

    def encode_answer(self, message: Message) -> list[int]:
        """Return the ids of an answer `message` as the model would sample them, without the end-of-turn token. Names of
        special tokens in it are ordinary text."""
        return self.encode(self._assistant_text(*self._marked(self.plain([message]))))

    def token_text(self, token_id: int) -> tuple[str, list[int] | None]:
        """Return the text and the bytes of a token, also of a special one; no bytes for a part of a character. The list
        is cached: do not modify it."""
        text_and_bytes = self._token_texts.get(token_id)
        if text_and_bytes is None:
            text = self.tokenizer.decode([token_id], skip_special_tokens=False)
            content = None if "\N{REPLACEMENT CHARACTER}" in text else list(text.encode())
            text_and_bytes = self._token_texts[token_id] = (text, content)
        return text_and_bytes

    def decoder(self, calls: bool) -> Decoder:
        """Return the decoder of sampled ids of an answer with or without tool calls."""
        return self._decoder_with_calls if calls else self._decoder

    def reader(self, tools: Sequence[Tool]) -> AnswerReader | None:
        """Return a new reader of one answer, of calls if `tools` are offered; None if all of it is content."""
        tags = self.template.tags
        if tags is None and not tools:
            return None
        thoughts = None if tags is None else ThoughtScanner(tags, self.template.thought_begun)
        return AnswerReader(thoughts, self.tool_format.scanner(tools) if tools else None)

    def forced_prefix(self, name: str | None) -> str:
        """Return the start of an answer that must call the tool `name`, or any tool if None. A thought that the
        generation prompt opens is closed first."""
        tags = self.template.tags
        prefix = self.tool_format.forced_prefix(name)
        return prefix if tags is None or not self.template.thought_begun else f"{tags.close}\n\n{prefix}"

    def forced_ids(self, name: str | None) -> list[int]:
        """Return the token ids of `forced_prefix(name)`."""
        return self.encode(self.forced_prefix(None if name is None else self._content.mark(name)))

    def plain(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Return the messages in plain form; thoughts are `reasoning_content`, or part of the text with thinking off.

        Raises:
            BadRequestError: the messages are malformed.
        """
        plain = plain_messages(messages)
        tags = self.template.tags
        if tags is None:
            return [without_thought(message) for message in plain]
        return [separated(message, tags, self.template.thought_begun) for message in plain]

    def continuation(
        self,
        previous_messages: Sequence[Message],
        new_messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        *,
        ended: bool = True,
        most: int | None = None,
        plain: bool = False,
    ) -> list[int] | None:
        """Return the ids from the end of a recorded conversation to the next generation prompt.

        Args:
            previous_messages: the messages of the earlier call and its answer, with the recorded thoughts.
            new_messages: the messages after that.
            tools: the tools of both calls.
            ended: True if the recorded output ends with the end-of-turn token; otherwise (length bound, stop string)
                the continuation starts with it.
            most: maximum number of ids.
            plain: the messages are in the form that `plain` returns.

        Returns:
            The ids to append to the earlier prompt and output ids; None if the template, or the policy for thinking,
            rewrites history, so that the earlier call is not a prefix of this one.

        Raises:
            BadRequestError: the messages are malformed, or the chat template refuses them.
            ContextLengthError: there are more than `most` ids.
        """
        whole: list[Any] = [*previous_messages, *new_messages]
        whole = whole if plain else self.plain(whole)
        previous, new = whole[: len(previous_messages)], whole[len(previous_messages) :]
        if self.template.alternating and new and new[0]["role"] == "assistant":
            return None  # it is joined to the answer
        if self.thinking == "drop":
            if has_thought(previous):
                return None
            new = [without_thought(message) for message in new]
        previous, new, tools = self._marked(previous), self._marked(new), self._content.mark_all(tools)
        if self.thinking == "keep":
            # Only the text around the answers is needed: their thoughts are in the recorded ids.
            previous = [without_thought(message) for message in previous]
        whole_text = self._text([*previous, *new], tools, True)
        end_text = self.template.end_text
        if not end_text:
            previous_text = self._text(previous, tools, False)
            kept = whole_text.startswith(previous_text) and keeps(previous_text, previous[-1])
            return self._content.encode(whole_text[len(previous_text) :], most) if kept else None
        if self.thinking == "keep":  # earlier turns may be rendered differently, but their number is the same
            parts = whole_text.split(end_text, self._text(previous, tools, False).count(end_text))
        else:
            prompt_text = self._text(previous[:-1], tools, True)
            after = whole_text[len(prompt_text) :] if whole_text.startswith(prompt_text) else ""
            parts = after.split(end_text, 1)
        if len(parts) < 2 or not keeps(parts[-2], previous[-1]):
            return None
        rest = parts[-1]
        return self._content.encode(rest if ended else end_text + rest, most)

    def _assistant_text(self, plain: Mapping[str, Any]) -> str:
        """Return the text of a plain answer as the model would sample it, without the end-of-turn token."""
        text = assistant_text(plain, self.tool_format, self.template.call_lead)
        tags, lead = self.template.tags, self.template.lead if plain["content"] else self.template.lead_of_calls
        thought = plain.get("reasoning_content")
        if tags is not None and self.template.thought_begun:
            return f"{thought}\n{tags.close}\n\n{text}" if thought else f"{tags.close}\n\n{text}"
        if tags is not None and thought:
            return f"{'' if tags.open in lead else lead}{tags.open}\n{thought}\n{tags.close}\n\n{text}"
        return lead + text

    def conversation_to_records(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None = None
    ) -> list[CompletionRecord]:
        """Return a written conversation as if it were sampled: a record per assistant turn, with log-probabilities 0.

        Each turn continues the one before token by token, as in the gateway, unless the template rewrites history.

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
            output_ids = self.encode_answer(message) + end
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

    def _rendered(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[Tool] | None, add_generation_prompt: bool
    ) -> str:
        if self.thinking == "drop":
            messages = [without_thought(message) for message in messages]
        return self._text(self._marked(messages), self._content.mark_all(tools), add_generation_prompt)

    def _text(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[Tool] | None, add_generation_prompt: bool
    ) -> str:
        if not messages:
            return ""
        template = self.template
        native = template.native_tools
        turns = [self._turn(message) for message in messages]
        if tools and not native:
            turns = with_system_text(turns, self.tool_format.section(tools))
        if template.system_first or not template.system_role:
            turns = system_text_folded(turns, template.system_role)
        if template.alternating or not native or not template.user_after_result:
            turns = merged(turns, template.alternating, template.user_after_result)
        try:
            return template.apply(turns, tools if native else None, add_generation_prompt)
        except Exception as error:  # chat templates may raise anything
            raise BadRequestError(f"the model's chat template refuses this conversation: {error}") from error

    def _marked(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return [self._content.mark_message(message) for message in messages]

    def _turn(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a plain message as a turn for the template."""
        template = self.template
        as_it_is = template.native_tools or (message["role"] == "tool" and template.wraps_results)
        if as_it_is and not self._as_text(message):
            turn = with_short_ids(message) if template.short_ids else message
        else:
            turn = ordinary_turn(message, self.tool_format, template.tool_role)
        return template.with_thought(turn)

    def _as_text(self, message: Mapping[str, Any]) -> bool:
        """Return True if calls must be part of the content, because the template would refuse or lose some."""
        template, calls = self.template, message.get("tool_calls", ())
        if not calls or not template.native_calls:
            return bool(calls)
        if not template.calls_as_text:
            return False
        several = len(calls) > 1 and not template.several_calls
        malformed = not all(isinstance(call["function"]["arguments"], dict) for call in calls)
        beside = bool(message["content"]) and not template.content_beside_calls
        return several or beside or (malformed and not template.takes_any_arguments)


def has_thought(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if any plain message has a thought."""
    return any(message.get("reasoning_content") is not None for message in messages)


def _check(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}")
