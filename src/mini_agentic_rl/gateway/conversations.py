"""Memory of the calls served, so that a conversation that goes on continues from its recorded ids.

A request whose messages extend those of an earlier call and the answer to it is given the earlier prompt and output
ids, and only what is new is encoded. Anything else is rendered in full, and so forks the attempt's token tree.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .chat_template import ChatRenderer
from .messages import Tool, parse_arguments

Scope = tuple[str, str] | None
"""(rollout id, attempt id); None for calls outside of any rollout."""


@dataclass(frozen=True)
class Prompt:
    """A conversation as token ids, and the key under which the answer to it is remembered."""

    ids: tuple[int, ...]
    """The whole prompt, generation prompt included."""
    key: bytes
    """Digest of the tools and the messages."""


@dataclass(frozen=True)
class _Call:
    ids: array[int]
    ended: bool


class ConversationMemory:
    """Recorded calls by attempt. Used from one event loop.

    Args:
        renderer: renders what is new.
        max_attempts: attempts remembered; the one used longest ago is forgotten first.
        max_calls: calls remembered in each attempt.
        max_tokens: tokens remembered in all; bounds the memory to 4 bytes for each.
    """

    def __init__(
        self, renderer: ChatRenderer, *, max_attempts: int = 1024, max_calls: int = 256, max_tokens: int = 16_000_000
    ) -> None:
        self._renderer = renderer
        self._max_attempts = max_attempts
        self._max_calls = max_calls
        self._max_tokens = max_tokens
        self._attempts: OrderedDict[Scope, OrderedDict[bytes, _Call]] = OrderedDict()
        self._tokens = 0
        self.continued = 0
        """Prompts that went on from recorded ids."""
        self.forked = 0
        """Prompts whose history was not what had been recorded, or was rewritten by the template."""
        self.rendered = 0
        """Prompts that began a conversation."""

    def counters(self) -> dict[str, int]:
        """How prompts came about, and how much is remembered."""
        return {
            "continued": self.continued,
            "forked": self.forked,
            "rendered": self.rendered,
            "attempts": len(self._attempts),
            "tokens": self._tokens,
        }

    def prompt(self, scope: Scope, messages: Sequence[dict[str, Any]], tools: Sequence[Tool]) -> Prompt:
        """Token ids for plain `messages`, from recorded ids as far as there are any.

        Raises:
            BadRequestError: the chat template refuses the messages.
        """
        keys = _chain(messages, tools)
        calls = self._attempts.get(scope)
        diverged = False
        if calls is not None:
            self._attempts.move_to_end(scope)
            for count in range(len(messages), 0, -1):
                if messages[count - 1]["role"] != "assistant":
                    continue
                call = calls.get(keys[count])
                if call is None:
                    diverged = True
                    continue
                calls.move_to_end(keys[count])
                added = self._renderer.continuation(messages[:count], messages[count:], tools, ended=call.ended)
                if added is None:
                    diverged = True
                    break
                self._count(diverged, continues=True)
                return Prompt((*call.ids, *added), keys[-1])
        ids = self._renderer.render(messages, tools)
        self._count(diverged, continues=False)
        return Prompt(tuple(ids), keys[-1])

    def remember(
        self,
        scope: Scope,
        prompt: Prompt,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        message: dict[str, Any],
    ) -> None:
        """Keep a call: the ids that were sampled after `prompt_ids`, and the plain answer that the client was given."""
        key = _link(prompt.key, message)
        ended = bool(output_ids) and output_ids[-1] == self._renderer.end_of_turn_id
        calls = self._attempts.setdefault(scope, OrderedDict())
        self._attempts.move_to_end(scope)
        self._forget(calls, key)
        calls[key] = _Call(array("i", (*prompt_ids, *output_ids)), ended)
        self._tokens += len(calls[key].ids)
        while len(calls) > self._max_calls:
            self._forget(calls, next(iter(calls)))
        while len(self._attempts) > self._max_attempts or (self._tokens > self._max_tokens and len(self._attempts) > 1):
            _, dropped = self._attempts.popitem(last=False)
            self._tokens -= sum(len(call.ids) for call in dropped.values())

    def _forget(self, calls: OrderedDict[bytes, _Call], key: bytes) -> None:
        call = calls.pop(key, None)
        if call is not None:
            self._tokens -= len(call.ids)

    def _count(self, diverged: bool, continues: bool) -> None:
        if diverged:
            self.forked += 1
        elif continues:
            self.continued += 1
        else:
            self.rendered += 1


def _chain(messages: Sequence[dict[str, Any]], tools: Sequence[Tool]) -> list[bytes]:
    """Digests of the first 0, 1, 2, ... messages."""
    keys = [hashlib.blake2b(json.dumps(tools, sort_keys=True).encode(), digest_size=16).digest()]
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
