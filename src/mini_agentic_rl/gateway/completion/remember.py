"""Memory of the calls served, so that a conversation that goes on continues from its recorded ids.

A request whose messages extend those of an earlier call and the answer to it is given the earlier prompt and output
ids, and only what is new is encoded. Anything else is rendered in full, and so forks the attempt's token tree. An
answer is recognised by what it said and called; what it thought may be sent back with it or left out.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import Counter, OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from ..dialects import CallScope
from ..render.messages import squashed, without_thought
from ..render.renderer import ChatRenderer, has_thought
from ..tool_formats import Tool, parse_arguments

ForkReason = Literal["edited", "tools", "template", "thinking", "forgotten"]
"""Reason for which a prompt whose history holds answers of ours does not go on from all of their recorded ids:

- edited: the client changed the history.
- tools: the client offers other tools than before.
- template: the chat template writes earlier turns differently by now, e.g. without their thinking.
- thinking: thoughts are dropped from the history by the policy `thinking="drop"`.
- forgotten: the recorded ids had to make room.
"""


class PromptCounters:
    """Counts prompts by how they came about."""

    def __init__(self) -> None:
        self.continued = 0
        """Prompts that went on from recorded ids."""
        self.rendered = 0
        """Prompts that began a conversation."""
        self._forked: Counter[ForkReason] = Counter()

    @property
    def forked(self) -> int:
        """Prompts that forked, whatever the reason."""
        return sum(self._forked.values())

    def count(self, reason: ForkReason | None, *, continues: bool) -> None:
        """Count a prompt.

        Args:
            reason: why it forked; None when it did not.
            continues: whether it goes on from recorded ids.
        """
        if reason is not None:
            self._forked[reason] += 1
        elif continues:
            self.continued += 1
        else:
            self.rendered += 1

    def counts(self) -> dict[str, int]:
        """Return `continued`, `rendered`, `forked`, and `forked_<reason>` for each reason."""
        reasons = {f"forked_{reason}": self._forked[reason] for reason in get_args(ForkReason)}
        return {"continued": self.continued, "rendered": self.rendered, "forked": self.forked, **reasons}


Thoughts = tuple[str | None, ...]
"""The thought of each assistant message of a conversation; None where none is known."""

_REWRITTEN = 4
"""So many earlier calls are tried when the template has rewritten the latest one: each costs two renderings."""

_TOOLS = 8
"""So many sets of tools are remembered in an attempt, to tell when a client has changed them."""


@dataclass(frozen=True)
class Prompt:
    """A conversation as token ids, and what the answer to it is remembered with."""

    ids: tuple[int, ...]
    """The whole prompt, generation prompt included."""
    key: bytes
    """Digest of the tools and the messages, thoughts left out."""
    tools_key: bytes
    """Digest of the tools alone."""
    thoughts: Thoughts
    """Those of its assistant messages."""


@dataclass(frozen=True)
class _RememberedCall:
    ids: array[int]
    ended: bool
    thoughts: Thoughts
    """Those of all assistant messages, the answer's last."""
    prompt_key: bytes
    answer: bytes
    """Digest of the answer alone."""


@dataclass
class _Attempt:
    """The calls of one attempt, by the key of their messages and answer."""

    calls: OrderedDict[bytes, _RememberedCall] = field(default_factory=OrderedDict)
    prompts: Counter[bytes] = field(default_factory=Counter)
    """Number of calls by prompt."""
    answers: Counter[bytes] = field(default_factory=Counter)
    """Number of calls by answer."""
    tools: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    """Digests of the sets of tools that were offered, the latest last."""
    forgot: bool = False
    """True if calls had to make room."""

    def keep(self, key: bytes, call: _RememberedCall, tools_key: bytes) -> None:
        """Remember a call, and the tools that it was offered."""
        self.tools[tools_key] = None
        self.tools.move_to_end(tools_key)
        if len(self.tools) > _TOOLS:
            self.tools.popitem(last=False)
        self.calls[key] = call
        self.prompts[call.prompt_key] += 1
        self.answers[call.answer] += 1

    def drop(self, key: bytes) -> int:
        """Forget a call, if it is known; return how many tokens it had."""
        call = self.calls.pop(key, None)
        if call is None:
            return 0
        for counted, digest in ((self.prompts, call.prompt_key), (self.answers, call.answer)):
            counted[digest] -= 1
            if not counted[digest]:
                del counted[digest]
        return len(call.ids)


class ConversationMemory:
    """Recorded calls by attempt.

    Calls are remembered on one event loop, prompts are made there or in threads: they find an attempt as it is at that
    moment, or see that it has been forgotten.

    Args:
        renderer: renders what is new.
        max_attempts: attempts remembered; the one used longest ago is forgotten first.
        max_calls: calls remembered in each attempt.
        max_tokens: tokens remembered in all; bounds the memory to 4 bytes for each, and the text of their thoughts.
    """

    def __init__(
        self, renderer: ChatRenderer, *, max_attempts: int = 1024, max_calls: int = 256, max_tokens: int = 16_000_000
    ) -> None:
        self._renderer = renderer
        self._max_attempts = max_attempts
        self._max_calls = max_calls
        self._max_tokens = max_tokens
        self._attempts: OrderedDict[CallScope, _Attempt] = OrderedDict()
        self._forgotten: OrderedDict[CallScope, None] = OrderedDict()
        self._tokens = 0
        self.prompt_counters = PromptCounters()
        """Counts how prompts came about."""

    def counters(self) -> dict[str, int]:
        """Return how prompts came about, and how much is remembered."""
        return {**self.prompt_counters.counts(), "attempts": len(self._attempts), "tokens": self._tokens}

    def prompt(
        self,
        scope: CallScope,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[Tool],
        most: int | None = None,
        renderer: ChatRenderer | None = None,
    ) -> Prompt:
        """Return token ids for plain `messages`, from recorded ids as far as there are any.

        Args:
            renderer: renders what is new; one with settings goes on from calls with the same settings only.

        Raises:
            BadRequestError: the chat template refuses the messages.
            ContextLengthError: more than `most` ids would have to be rendered.
        """
        renderer = renderer or self._renderer
        messages = renderer.plain(messages)
        dropping = renderer.thinking == "drop"
        if dropping:
            messages = [without_thought(message) for message in messages]
        tools_key = _digest([tools, renderer.settings] if renderer.settings else tools)
        keys = _chain(messages, tools_key)
        attempt = self._attempts.get(scope)
        reason: ForkReason | None = None
        if attempt is None:
            if scope in self._forgotten and _thoughts(messages):
                reason = "forgotten"
        else:
            with suppress(KeyError):  # forgotten meanwhile
                self._attempts.move_to_end(scope)
            recorded_ids, reason, known = self._continued(renderer, attempt, messages, tools, keys, most)
            if recorded_ids is not None:
                self.prompt_counters.count(reason, continues=True)
                return Prompt(recorded_ids, keys[-1], tools_key, _thoughts(known))
            reason = reason or _why(attempt, messages, tools_key)
            messages = messages if dropping else known
        ids = renderer.render(messages, tools, most=most)
        self.prompt_counters.count(reason, continues=False)
        return Prompt(tuple(ids), keys[-1], tools_key, _thoughts(messages))

    def remember(
        self,
        scope: CallScope,
        prompt: Prompt,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        message: dict[str, Any],
    ) -> None:
        """Keep a call: the ids that were sampled after `prompt_ids`, and the plain answer that the client was given."""
        (message,) = self._renderer.plain([message])
        key = _link(prompt.key, message)
        ended = bool(output_ids) and output_ids[-1] == self._renderer.end_of_turn_id
        attempt = self._attempts.setdefault(scope, _Attempt())
        self._attempts.move_to_end(scope)
        self._forgotten.pop(scope, None)
        self._tokens -= attempt.drop(key)
        ids = array("i", (*prompt_ids, *output_ids))
        thoughts = (*prompt.thoughts, message.get("reasoning_content"))
        attempt.keep(key, _RememberedCall(ids, ended, thoughts, prompt.key, _link(b"", message)), prompt.tools_key)
        self._tokens += len(ids)
        while len(attempt.calls) > self._max_calls:
            self._tokens -= attempt.drop(next(iter(attempt.calls)))
            attempt.forgot = True
        while len(self._attempts) > self._max_attempts or (self._tokens > self._max_tokens and len(self._attempts) > 1):
            forgotten, dropped = self._attempts.popitem(last=False)
            self._tokens -= sum(len(call.ids) for call in dropped.calls.values())
            self._forgotten[forgotten] = None
            if len(self._forgotten) > 4 * self._max_attempts:
                self._forgotten.popitem(last=False)

    def forget(self, scope: CallScope) -> None:
        """Drop the calls of an attempt."""
        dropped = self._attempts.pop(scope, None)
        if dropped is not None:
            self._tokens -= sum(len(call.ids) for call in dropped.calls.values())

    def _continued(
        self,
        renderer: ChatRenderer,
        attempt: _Attempt,
        messages: list[dict[str, Any]],
        tools: Sequence[Tool],
        keys: Sequence[bytes],
        most: int | None,
    ) -> tuple[tuple[int, ...] | None, ForkReason | None, list[dict[str, Any]]]:
        """Return the prompt from recorded ids, None where there are none to go on from; why it forks, None where it
        does not; and the messages with the thoughts that were recorded."""
        reason: ForkReason | None = None
        tries = _REWRITTEN
        full = messages
        for count in range(len(messages), 0, -1):
            if messages[count - 1]["role"] != "assistant":
                continue
            call = attempt.calls.get(keys[count])
            if call is None or not _same_thoughts(_thoughts(messages[:count]), call.thoughts):
                answered = call is not None or attempt.prompts[keys[count - 1]] > 0
                reason = reason or ("edited" if answered else None)
                continue
            known = _with_thoughts(full, call.thoughts)
            if full is messages:
                full = known
            added = renderer.continuation(known[:count], known[count:], tools, ended=call.ended, most=most)
            if added is not None:
                with suppress(KeyError):  # forgotten meanwhile
                    attempt.calls.move_to_end(keys[count])
                if reason is None and _ours(attempt, messages[count:]):
                    reason = "edited"
                return (*call.ids, *self._not_twice(call, added)), reason, known
            dropped = renderer.thinking == "drop" and has_thought(known[:count])
            reason = reason or ("thinking" if dropped else "template")
            tries -= 1
            if not tries:
                break
        return None, reason, full

    def _not_twice(self, call: _RememberedCall, added: list[int]) -> list[int]:
        """Leave out a token that the model has sampled already: a template may end turns by what begins the next."""
        twice = added and call.ids[-1] == added[0] and added[0] in self._renderer.eos_ids
        return added[1:] if twice else added


def _why(attempt: _Attempt, messages: Sequence[dict[str, Any]], tools_key: bytes) -> ForkReason | None:
    """Return why a prompt goes on from nothing recorded; None when it is a conversation of its own."""
    answers = [count for count, message in enumerate(messages, 1) if message["role"] == "assistant"]
    for other in tuple(attempt.tools):
        if answers and other != tools_key:
            others = _chain(messages, other)
            if any(others[count] in attempt.calls for count in answers):
                return "tools"
    if _ours(attempt, messages):
        return "edited"
    return "forgotten" if answers and attempt.forgot else None


def _ours(attempt: _Attempt, messages: Sequence[dict[str, Any]]) -> bool:
    """Return True if any of the messages is an answer that was given in this attempt."""
    return any(message["role"] == "assistant" and attempt.answers[_link(b"", message)] > 0 for message in messages)


def _thoughts(messages: Sequence[dict[str, Any]]) -> Thoughts:
    return tuple(message.get("reasoning_content") for message in messages if message["role"] == "assistant")


def _same_thoughts(sent: Thoughts, known: Thoughts) -> bool:
    """Return True if the thoughts sent back are those recorded; one that was left out agrees with anything."""
    return all(
        not one or other is None or squashed(one) == squashed(other) for one, other in zip(sent, known, strict=True)
    )


def _with_thoughts(messages: Sequence[dict[str, Any]], known: Thoughts) -> list[dict[str, Any]]:
    """Return the messages, the first assistant messages of them with the thoughts that were recorded."""
    left = iter(known)
    full = []
    for message in messages:
        thought = next(left, message.get("reasoning_content")) if message["role"] == "assistant" else None
        full.append(without_thought(message) if thought is None else {**message, "reasoning_content": thought})
    return full


def _digest(value: Any) -> bytes:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).digest()


def _chain(messages: Sequence[dict[str, Any]], tools_key: bytes) -> list[bytes]:
    """Return digests of the first 0, 1, 2, ... messages."""
    keys = [tools_key]
    for message in messages:
        keys.append(_link(keys[-1], message))
    return keys


def _link(key: bytes, message: dict[str, Any]) -> bytes:
    calls = [
        (call["function"]["name"], parse_arguments(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    ]
    said = json.dumps([message["role"], (message["content"] or "").strip(), calls], sort_keys=True)
    return hashlib.blake2b(key + said.encode(), digest_size=16).digest()
