"""Memory of served calls, so that a conversation continues from its recorded token ids.

If the messages of a request extend those of an earlier call and its answer, its prompt starts with the recorded prompt
and output ids, and only the new messages are encoded. Any other request is rendered in full and forks the attempt's
token tree. An answer is recognised by its content and calls; clients may send its thought back or leave it out.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import Counter, OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from ..dialects import CallScope
from ..render.messages import squashed, without_thought
from ..render.renderer import ChatRenderer, has_thought
from ..tool_formats import Tool, parse_arguments

ForkReason = Literal["edited", "tools", "template", "thinking"]
"""Reason why a prompt with recorded answers in its history does not continue from all of their recorded ids:

- edited: the client changed the history.
- tools: the client offers other tools than before.
- template: the chat template renders earlier turns differently now, e.g. without their thinking.
- thinking: the policy `thinking="drop"` removes thoughts from the history.
"""


Key = tuple[bytes, bytes]
"""Digests of the offered tools, and of the first messages of a conversation without their thoughts."""
Thoughts = tuple[str | None, ...]
"""The thought of each assistant message of a conversation; None if it is unknown."""

_MAX_TRIES = 4
"""Earlier calls that are tried when the template has rewritten the latest: each costs two renderings."""


@dataclass(frozen=True)
class Prompt:
    """A prompt as token ids, and the key under which its answer is remembered."""

    ids: tuple[int, ...]
    """The whole prompt including the generation prompt."""
    key: Key = (b"", b"")
    thoughts: Thoughts = ()


@dataclass(frozen=True)
class _RememberedCall:
    ids: array[int]
    ended: bool
    thoughts: Thoughts
    """Including the thought of the answer."""
    prompt_key: Key
    answer: bytes
    """Digest of the answer."""


_Calls: TypeAlias = OrderedDict[Key, _RememberedCall]
"""The calls of an attempt, by the key of their messages and answer."""


class ConversationMemory:
    """Recorded calls by attempt.

    Calls are remembered on one event loop; prompts are made there or in threads.

    Args:
        renderer: renders new messages.
        max_attempts: attempts that are remembered; the least recently used is evicted first.
        max_calls: calls that are remembered in each attempt.
        max_tokens: total tokens; each takes 4 bytes, beside the text of thoughts.
    """

    def __init__(
        self, renderer: ChatRenderer, *, max_attempts: int = 1024, max_calls: int = 256, max_tokens: int = 16_000_000
    ) -> None:
        self._renderer = renderer
        self._max_attempts = max_attempts
        self._max_calls = max_calls
        self._max_tokens = max_tokens
        self._attempts: OrderedDict[CallScope, _Calls] = OrderedDict()
        self._tokens = 0
        self._prompts: Counter[str] = Counter()

    def prompt_counts(self) -> dict[str, int]:
        """Return the number of prompts that `continued` from recorded ids, were `rendered` as a new conversation, and
        `forked`, and `forked_<reason>` for each reason."""
        reasons = {f"forked_{reason}": self._prompts[reason] for reason in get_args(ForkReason)}
        forked = sum(reasons.values())
        return {
            "continued": self._prompts["continued"],
            "rendered": self._prompts["rendered"],
            "forked": forked,
            **reasons,
        }

    def counters(self) -> dict[str, int]:
        """Return `prompt_counts`, and the number of remembered `attempts` and `tokens`."""
        return {**self.prompt_counts(), "attempts": len(self._attempts), "tokens": self._tokens}

    def prompt(
        self,
        scope: CallScope,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[Tool],
        most: int | None = None,
        renderer: ChatRenderer | None = None,
    ) -> Prompt:
        """Return the prompt for `messages`, from recorded ids as far as possible.

        Args:
            scope: the attempt.
            messages: the conversation.
            tools: the offered tools.
            most: maximum number of ids to render.
            renderer: renders new messages; one with settings continues only calls with the same settings.

        Raises:
            BadRequestError: the chat template refuses the messages.
            ContextLengthError: more than `most` ids must be rendered.
        """
        renderer = renderer or self._renderer
        messages = renderer.plain(messages)
        dropping = renderer.thinking == "drop"
        if dropping:
            messages = [without_thought(message) for message in messages]
        offered = json.dumps([tools, renderer.settings] if renderer.settings else tools, sort_keys=True)
        tools_key = hashlib.blake2b(offered.encode(), digest_size=16).digest()
        keys = [(tools_key, b"")]
        for message in messages:
            keys.append((tools_key, _link(keys[-1][1], message)))
        calls = self._attempts.get(scope)
        reason: ForkReason | None = None
        if calls is not None:
            with suppress(KeyError):  # evicted meanwhile
                self._attempts.move_to_end(scope)
            recorded_ids, reason, known = self._continued(renderer, calls, messages, tools, keys, most)
            if recorded_ids is not None:
                self._prompts[reason or "continued"] += 1
                return Prompt(recorded_ids, keys[-1], _thoughts(known))
            reason = reason or _fork_reason(calls, messages, keys)
            messages = messages if dropping else known
        ids = renderer.render(messages, tools, most=most, plain=True)
        self._prompts[reason or "rendered"] += 1
        return Prompt(tuple(ids), keys[-1], _thoughts(messages))

    def remember(
        self,
        scope: CallScope,
        prompt: Prompt,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        message: dict[str, Any],
    ) -> None:
        """Remember a call: its prompt and output ids, and the message of the answer."""
        (message,) = self._renderer.plain([message])
        tools_key, messages_key = prompt.key
        key = (tools_key, _link(messages_key, message))
        ended = bool(output_ids) and output_ids[-1] == self._renderer.end_of_turn_id
        calls = self._attempts.setdefault(scope, OrderedDict())
        self._attempts.move_to_end(scope)
        ids = array("i", prompt_ids)
        ids.extend(output_ids)
        thoughts = (*prompt.thoughts, message.get("reasoning_content"))
        replaced = calls.pop(key, None)
        calls[key] = _RememberedCall(ids, ended, thoughts, prompt.key, _link(b"", message))
        self._tokens += len(ids) - (0 if replaced is None else len(replaced.ids))
        if len(calls) > self._max_calls:
            self._tokens -= len(calls.popitem(last=False)[1].ids)
        while len(self._attempts) > self._max_attempts or (self._tokens > self._max_tokens and len(self._attempts) > 1):
            # In one step: prompts that are made in threads change the order between two.
            _, dropped = self._attempts.popitem(last=False)
            self._tokens -= sum(len(call.ids) for call in dropped.values())

    def forget(self, scope: CallScope) -> None:
        """Drop all calls of an attempt."""
        dropped = self._attempts.pop(scope, OrderedDict())
        self._tokens -= sum(len(call.ids) for call in dropped.values())

    def _continued(
        self,
        renderer: ChatRenderer,
        calls: _Calls,
        messages: list[dict[str, Any]],
        tools: Sequence[Tool],
        keys: Sequence[Key],
        most: int | None,
    ) -> tuple[tuple[int, ...] | None, ForkReason | None, list[dict[str, Any]]]:
        """Return the prompt from recorded ids or None, the reason of a fork or None, and the messages with the
        recorded thoughts."""
        reason: ForkReason | None = None
        tries = _MAX_TRIES
        full = messages
        answered_prompts = {call.prompt_key for call in tuple(calls.values())}
        for count in range(len(messages), 0, -1):
            if messages[count - 1]["role"] != "assistant":
                continue
            call = calls.get(keys[count])
            if call is None or not _same_thoughts(_thoughts(messages[:count]), call.thoughts):
                answered = call is not None or keys[count - 1] in answered_prompts
                reason = reason or ("edited" if answered else None)
                continue
            known = _with_thoughts(full, call.thoughts)
            if full is messages:
                full = known
            added = renderer.continuation(known[:count], known[count:], tools, ended=call.ended, most=most, plain=True)
            if added is not None:
                with suppress(KeyError):  # evicted meanwhile
                    calls.move_to_end(keys[count])
                if reason is None and _has_answer(calls, messages[count:]):
                    reason = "edited"
                # A template may end turns with the token that begins the next, which is sampled already.
                if added and call.ids[-1] == added[0] and added[0] in self._renderer.eos_ids:
                    added = added[1:]
                return (*call.ids, *added), reason, known
            dropped = renderer.thinking == "drop" and has_thought(known[:count])
            reason = reason or ("thinking" if dropped else "template")
            tries -= 1
            if not tries:
                break
        return None, reason, full


def _has_answer(calls: _Calls, messages: Sequence[dict[str, Any]]) -> bool:
    """Return True if any of the messages is one of the recorded answers."""
    answers = {_link(b"", message) for message in messages if message["role"] == "assistant"}
    return bool(answers) and any(call.answer in answers for call in tuple(calls.values()))


def _fork_reason(calls: _Calls, messages: Sequence[dict[str, Any]], keys: Sequence[Key]) -> ForkReason | None:
    """Return why a prompt continues from no recorded ids; None for a new conversation."""
    with_any_tools = {messages_key for _, messages_key in tuple(calls)}
    if any(messages_key in with_any_tools for _, messages_key in keys[1:]):
        return "tools"
    return "edited" if _has_answer(calls, messages) else None


def _thoughts(messages: Sequence[dict[str, Any]]) -> Thoughts:
    return tuple(message.get("reasoning_content") for message in messages if message["role"] == "assistant")


def _same_thoughts(sent: Thoughts, known: Thoughts) -> bool:
    """Return True if the thoughts that were sent back are the recorded ones; missing ones are ignored."""
    return all(
        not thought or recorded is None or squashed(thought) == squashed(recorded)
        for thought, recorded in zip(sent, known, strict=True)
    )


def _with_thoughts(messages: Sequence[dict[str, Any]], known: Thoughts) -> list[dict[str, Any]]:
    """Return the messages with the recorded thoughts in the first assistant messages."""
    left = iter(known)
    full = []
    for message in messages:
        thought = next(left, message.get("reasoning_content")) if message["role"] == "assistant" else None
        full.append(without_thought(message) if thought is None else {**message, "reasoning_content": thought})
    return full


def _link(key: bytes, message: dict[str, Any]) -> bytes:
    calls = [
        (call["function"]["name"], parse_arguments(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    ]
    text = json.dumps([message["role"], (message["content"] or "").strip(), calls], sort_keys=True)
    return hashlib.blake2b(key + text.encode(), digest_size=16).digest()
