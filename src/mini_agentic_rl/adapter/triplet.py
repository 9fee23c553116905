"""Convert spans to triplets: each LLM call as (prompt, response, reward).

A reward belongs to the last LLM call before it; of several rewards after one call, the first counts. An attempt without
a triplet, or without a reward, is logged with the reason.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Sequence
from enum import Enum
from typing import Any

from ..emitter import find_reward_spans, get_reward_value
from ..semconv import CompletionSpanAttributes as Key
from ..types import Span, Triplet
from .base import Hierarchy, TraceAdapter, by_attempt
from .messages import as_ours, completion_of, parsed_messages, prompt_of, request_of, response_of
from .records import agent_mismatch, computes_reward

logger = logging.getLogger(__name__)

_SHOWN_NAMES = 5


class RewardMatchPolicy(str, Enum):
    """Rule that assigns rewards to LLM calls."""

    FIRST_SIBLING = "first_sibling"
    """The last call before it that has the same parent."""
    FIRST_OCCURRENCE = "first_occurrence"
    """The last call before it."""


class TraceToTripletBase(TraceAdapter[list[Triplet]]):
    """Base of the adapters that yield triplets."""


class TracerTraceToTriplet(TraceToTripletBase):
    """Adapter that reads triplets from spans with parents.

    Args:
        repair_hierarchy: give spans without a parent the shortest span that encloses them in time.
        llm_call_match: regular expression that is searched in the names of spans; matching spans are LLM calls.
        agent_match: regular expression that is searched in the name of a call's nearest agent. None keeps all calls.
        exclude_llm_call_in_reward: leave out calls that were made while a reward was computed (a judge).
        reward_match: rule that assigns rewards to calls.
        _skip_empty_token_spans: leave out calls without token ids of their prompt or their response.
    """

    def __init__(
        self,
        repair_hierarchy: bool = True,
        llm_call_match: str = re.escape(Key.SPAN_NAME),
        agent_match: str | None = None,
        exclude_llm_call_in_reward: bool = True,
        reward_match: RewardMatchPolicy = RewardMatchPolicy.FIRST_OCCURRENCE,
        _skip_empty_token_spans: bool = False,
    ) -> None:
        self.repair_hierarchy = repair_hierarchy
        self.llm_call_match = llm_call_match
        self.agent_match = agent_match
        self.exclude_llm_call_in_reward = exclude_llm_call_in_reward
        self.reward_match = RewardMatchPolicy(reward_match)
        self._needed = (Key.PROMPT_TOKEN_IDS, Key.RESPONSE_TOKEN_IDS) if _skip_empty_token_spans else ()

    def adapt(self, source: Sequence[Span], /) -> list[Triplet]:
        groups = ([as_ours(span) for span in group] for group in by_attempt(source).values())
        return [triplet for group in groups for triplet in self._attempt(group)]

    def _attempt(self, spans: list[Span]) -> list[Triplet]:
        tree = Hierarchy(spans, self.repair_hierarchy)
        candidates = [span for span in spans if re.search(self.llm_call_match, span.name)]
        why_not = {span.span_id: self._why_not(span, tree) for span in candidates}
        calls = _without_duplicates([span for span in candidates if why_not[span.span_id] is None])
        siblings = self.reward_match is RewardMatchPolicy.FIRST_SIBLING
        rewards = _match_rewards(spans, calls, tree if siblings else None)
        if not calls:
            what = f"an LLM call (llm_call_match={self.llm_call_match!r} matches no span's name)"
            _log_empty(spans, what, Counter(reason for reason in why_not.values() if reason is not None))
        elif not rewards:
            _log_no_reward(
                spans, "reward_match=first_sibling finds no call with the reward's parent" if siblings else None
            )
        return [_triplet(call, tree.agent_name(call), rewards.get(call.span_id)) for call in calls]

    def _why_not(self, span: Span, tree: Hierarchy) -> str | None:
        """Return why an LLM call is left out; None if it is kept."""
        if self.exclude_llm_call_in_reward and tree.is_inside(span, computes_reward):
            return "made while a reward was computed (exclude_llm_call_in_reward)"
        if not all(span.attributes.get(name) for name in self._needed):
            return "without token ids (_skip_empty_token_spans)"
        patterns = {} if self.agent_match is None else {"agent_match": self.agent_match}
        return agent_mismatch(tree.agent_name(span), patterns)


class LlmProxyTraceToTriplet(TraceToTripletBase):
    """Adapter that reads triplets from the spans of the gateway, which have token ids, in the order of the store."""

    def adapt(self, source: Sequence[Span], /) -> list[Triplet]:
        triplets: list[Triplet] = []
        for group in by_attempt(source).values():
            spans = [as_ours(span) for span in group]
            calls = _without_duplicates(
                [s for s in spans if Key.PROMPT_TOKEN_IDS in s.attributes and Key.RESPONSE_TOKEN_IDS in s.attributes]
            )
            # A reward with the sequence id of a call counts as before it.
            spans.sort(key=lambda span: (span.sequence_id, Key.RESPONSE_TOKEN_IDS in span.attributes))
            rewards = _match_rewards(spans, calls, None)
            if not calls:
                _log_empty(spans, "an LLM call with token ids: was the gateway's rollout URL used?", Counter())
            elif not rewards:
                _log_no_reward(spans, None)
            triplets += [
                _triplet(call, call.attributes.get(Key.AGENT_NAME), rewards.get(call.span_id)) for call in calls
            ]
        return triplets


def _log_empty(spans: Sequence[Span], what: str, left_out: Counter[str]) -> None:
    first = spans[0]
    if left_out:
        why = "all LLM calls are left out: " + "; ".join(f"{count} {reason}" for reason, count in left_out.items())
    else:
        names = ", ".join(sorted({span.name for span in spans})[:_SHOWN_NAMES])
        why = f"none of its {len(spans)} spans is {what}; they are named {names}"
    logger.warning("attempt %s of rollout %s yields no triplet: %s", first.attempt_id, first.rollout_id, why)


def _log_no_reward(spans: Sequence[Span], unmatched: str | None) -> None:
    first, rewards = spans[0], find_reward_spans(spans)
    why = unmatched or f"its {len(rewards)} rewards were emitted before the first call"
    if not rewards:
        why = "none was emitted"
    logger.warning("attempt %s of rollout %s yields no reward: %s", first.attempt_id, first.rollout_id, why)


def _without_duplicates(calls: list[Span]) -> list[Span]:
    """Keep one span per choice of each response: the first with token ids, else the first."""
    kept: dict[tuple[str, int], Span] = {}
    for call in calls:
        key = (str(call.attributes.get(Key.RESPONSE_ID) or call.span_id), int(call.attributes.get(Key.CHOICE_INDEX, 0)))
        earlier = kept.get(key)
        if earlier is None or (
            Key.RESPONSE_TOKEN_IDS in call.attributes and Key.RESPONSE_TOKEN_IDS not in earlier.attributes
        ):
            kept[key] = call
    return sorted(kept.values(), key=lambda span: span.sequence_id)


def _match_rewards(spans: list[Span], calls: list[Span], siblings_in: Hierarchy | None) -> dict[str, float]:
    """Return the rewards by span id of the call; with a hierarchy, only calls with the reward's parent get it."""
    call_ids = {call.span_id for call in calls}
    last_call: dict[str | None, str] = {}
    rewards: dict[str, float] = {}
    for span in spans:
        scope = siblings_in.parent_id(span) if siblings_in is not None else None
        if span.span_id in call_ids:
            last_call[scope] = span.span_id
            continue
        value = get_reward_value(span)
        if value is not None and scope in last_call:
            rewards.setdefault(last_call[scope], value)
    return rewards


def _triplet(span: Span, agent_name: str | None, reward: float | None) -> Triplet:
    facts = span.attributes
    try:
        sent = parsed_messages(span, Key.INPUT_MESSAGES) or prompt_of(span)
        received = parsed_messages(span, Key.OUTPUT_MESSAGES) or completion_of(span)
    except ValueError as error:
        logger.warning("LLM call %s of rollout %s has unreadable messages: %s", span.span_id, span.rollout_id, error)
        sent, received = [], []
    prompt: dict[str, Any] = {
        "token_ids": list(facts.get(Key.PROMPT_TOKEN_IDS, [])),
        "raw_content": sent,
        "image_urls": _image_urls(sent),
    }
    response: dict[str, Any] = {"token_ids": list(facts.get(Key.RESPONSE_TOKEN_IDS, [])), "raw_content": received}
    if Key.RESPONSE_LOGPROBS in facts:
        response["logprobs"] = list(facts[Key.RESPONSE_LOGPROBS])
    elif isinstance(facts.get("logprobs.content"), str):  # AgentOps writes OpenAI's JSON
        response["logprobs"] = json.loads(facts["logprobs.content"])
    return Triplet(
        prompt=prompt,
        response=response,
        reward=reward,
        metadata={
            "response_id": facts.get(Key.RESPONSE_ID),
            "agent_name": agent_name,
            "request": request_of(span),
            "response": response_of(span),
        },
    )


def _image_urls(messages: Any) -> list[str]:
    listed = messages.values() if isinstance(messages, dict) else messages
    contents = [_parts(message.get("content")) for message in listed if isinstance(message, dict)]
    parts = [part for content in contents for part in content]
    return [
        part["image_url"]["url"]
        for part in parts
        if isinstance(part, dict) and part.get("type") == "image_url" and isinstance(part.get("image_url"), dict)
    ]


def _parts(content: Any) -> list[Any]:
    """Return the parts of a message's content, which some instrumentations write as JSON text."""
    if isinstance(content, str) and content.startswith("["):
        try:
            content = json.loads(content)
        except ValueError:
            return []
    return content if isinstance(content, list) else []
