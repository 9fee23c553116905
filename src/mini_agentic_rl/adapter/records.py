"""Convert spans to completion records, which hold the sampled tokens, and select the calls that are trained.

A client that retries sends the same prompt to the same model again and uses only the last answer. So of several
responses of one model to identical prompt ids of one agent in one attempt, only the last one is kept, with all its
choices.

A call is trained if it was not made while a reward was computed (a judge); its model is trained; its agent matches
`trained_agents` or an adapter's `agent_match`; and its agent is marked, if the rollout marks agents
(`Rollout.mark_agent_as_trainable`). A condition that is not set is true for every call. The agent's name is that of the
call's span, else of the nearest ancestor with a name.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..emitter import find_trainable_agents, is_reward_span
from ..errors import UserError
from ..semconv import AGL_REWARD, LightningSpanAttributes
from ..semconv import CompletionSpanAttributes as Key
from ..tokens import CompletionRecord, FinishReason, TokenTree
from ..types import Span
from .base import Hierarchy, TraceAdapter, by_attempt

logger = logging.getLogger(__name__)

_TOOL_CALLS: Final = re.compile(r'(?<!\\)"tool_calls"\s*:\s*\[\s*\{')
"""Tool calls in the JSON of a message; in a string of that JSON the quotes are escaped."""


class TraceToRecords(TraceAdapter[list[CompletionRecord]]):
    """Adapter that applies `spans_to_records`."""

    def adapt(self, source: Sequence[Span], /) -> list[CompletionRecord]:
        return spans_to_records(source)


def spans_to_records(spans: Sequence[Span]) -> list[CompletionRecord]:
    """Return the LLM calls among `spans`, ordered by `sequence_id` within each attempt, without retried calls.

    The `metadata` of a record hold `span_id` and `agent_name` (or None). A call with missing or inconsistent tokens is
    left out with a warning.
    """
    records: list[CompletionRecord] = []
    for group in by_attempt(spans).values():
        records += attempt_records(group, Hierarchy(group, repair=True))
    return records


def attempt_records(spans: Sequence[Span], tree: Hierarchy) -> list[CompletionRecord]:
    """Return the LLM calls of one attempt as `spans_to_records` does; `spans` are in the order of the store."""
    records = [record for span in spans if (record := _record(span, tree)) is not None]
    prompts = [(record.model, record.metadata["agent_name"], record.prompt_ids.tobytes()) for record in records]
    last = {prompt: record.response_id for prompt, record in zip(prompts, records, strict=True)}
    unique = {
        (prompt, record.choice): record
        for prompt, record in zip(prompts, records, strict=True)
        if record.response_id == last[prompt]
    }
    return sorted(unique.values(), key=lambda record: record.sequence_id)


def is_completion(span: Span) -> bool:
    """Return True if the span is an LLM call that should have tokens."""
    return Key.PROMPT_TOKEN_IDS in span.attributes or span.name == Key.SPAN_NAME


def count_tool_calls(spans: Sequence[Span]) -> int | None:
    """Return the number of LLM calls that were answered by a tool call; None if no call had tools.

    The messages are searched as text, without parsing.
    """
    calls = [span.attributes for span in spans if is_completion(span)]
    if not any(Key.TOOL_DEFINITIONS in facts for facts in calls):
        return None
    return sum(_TOOL_CALLS.search(str(facts.get(Key.OUTPUT_MESSAGES, ""))) is not None for facts in calls)


def _record(span: Span, tree: Hierarchy) -> CompletionRecord | None:
    if not is_completion(span):
        return None
    facts = span.attributes
    missing = [
        name for name in (Key.PROMPT_TOKEN_IDS, Key.RESPONSE_TOKEN_IDS, Key.RESPONSE_LOGPROBS) if name not in facts
    ]
    if missing:
        logger.warning("LLM call %s of rollout %s has no %s: left out", span.span_id, span.rollout_id, missing)
        return None
    versions = facts.get(Key.POLICY_VERSIONS)  # of each token, unless all have the same
    try:
        return CompletionRecord(
            prompt_ids=np.asarray(facts[Key.PROMPT_TOKEN_IDS], dtype=np.int64),
            output_ids=np.asarray(facts[Key.RESPONSE_TOKEN_IDS], dtype=np.int64),
            logprobs=np.asarray(facts[Key.RESPONSE_LOGPROBS], dtype=np.float32),
            forced=_forced(facts),
            version=int(facts.get(Key.POLICY_VERSION, 0)),
            versions=np.asarray(versions, dtype=np.int64) if versions else None,
            finish_reason=_finish_reason(facts.get(Key.FINISH_REASONS)),
            rollout_id=span.rollout_id,
            attempt_id=span.attempt_id,
            response_id=str(facts.get(Key.RESPONSE_ID, span.span_id)),
            choice=int(facts.get(Key.CHOICE_INDEX, 0)),
            model=str(facts.get(Key.REQUEST_MODEL, "")),
            temperature=float(facts.get(Key.REQUEST_TEMPERATURE, 1.0)),
            sequence_id=span.sequence_id,
            metadata={"span_id": span.span_id, "agent_name": tree.agent_name(span)},
        )
    except (TypeError, ValueError) as error:
        logger.warning("LLM call %s of rollout %s is left out: %s", span.span_id, span.rollout_id, error)
        return None


def _forced(facts: Mapping[str, Any]) -> npt.NDArray[np.bool_] | None:
    """Return a flag for each sampled token: True if a constraint left no choice.

    Raises:
        ValueError: a position is outside of the response.
    """
    positions = facts.get(Key.RESPONSE_FORCED_POSITIONS)
    if not positions:
        return None
    size = len(facts[Key.RESPONSE_TOKEN_IDS])
    if not all(0 <= int(position) < size for position in positions):
        raise ValueError(f"{Key.RESPONSE_FORCED_POSITIONS} names tokens beyond the {size} of the response")
    forced = np.zeros(size, np.bool_)
    forced[np.asarray(positions, np.int64)] = True
    return forced


def _finish_reason(reasons: Sequence[str] | str | None) -> FinishReason:
    """Return the sampler's reason; a tool call, or another end that the model chose, is a stop."""
    reason = reasons if isinstance(reasons, str) else (reasons or ["stop"])[0]
    if reason == "length":
        return "length"
    return "cancelled" if reason == "cancelled" else "stop"


@dataclass(frozen=True)
class Selection:
    """LLM calls of a rollout that are trained."""

    records: Sequence[CompletionRecord]
    """Calls that are trained, in the order of the store."""
    left_out: Mapping[str, int]
    """Number of the other calls by the reason why they are not trained."""

    @property
    def why_empty(self) -> str | None:
        """Reason why no call is trained; None if one is, or if there is no call."""
        if self.records or not self.left_out:
            return None
        return f"none of its LLM calls is trained: they are {'; '.join(sorted(self.left_out))}"


@dataclass(frozen=True)
class TrainedCalls:
    """Conditions under which calls are trained, the same for all rollouts.

    Raises:
        UserError: one of `agents` is no regular expression.
    """

    agents: Mapping[str, str] | None = None
    """Regular expressions by the name of their setting; all of them must be found in the agent's name."""
    models: Collection[str] | None = None
    """Names of the trained model; with None every model is trained."""

    def __post_init__(self) -> None:
        for setting, pattern in (self.agents or {}).items():
            try:
                re.compile(pattern)
            except re.error as error:
                raise UserError(f"{pattern!r} is no regular expression: {error}", setting=setting) from error

    def select(self, spans: Sequence[Span], marked: Collection[str] = ()) -> Selection:
        """Select the calls among `spans` that are trained.

        Args:
            spans: spans of one rollout.
            marked: agents that are marked in the rollout's metadata, in addition to those of the spans.
        """
        names = list(dict.fromkeys([*marked, *find_trainable_agents(spans)]))
        kept: list[CompletionRecord] = []
        left_out: Counter[str] = Counter()
        for group in by_attempt(spans).values():
            tree = Hierarchy(group, repair=True)
            by_id = {span.span_id: span for span in group}
            records = attempt_records(group, tree)
            for record in records:
                judging = tree.is_inside(by_id[record.metadata["span_id"]], computes_reward)
                reason = "made while a reward was computed" if judging else self._why_not(record, names)
                if reason is None:
                    kept.append(record)
                else:
                    left_out[reason] += 1
            unusable = sum(is_completion(span) for span in group) if not records else 0
            if unusable:
                left_out["without the token ids or log-probabilities that training needs"] += unusable
        return Selection(kept, dict(left_out))

    def _why_not(self, record: CompletionRecord, marked: Sequence[str]) -> str | None:
        if self.models is not None and record.model not in self.models:
            return f"to model {record.model!r}, which is not trained"
        agent = record.metadata["agent_name"]
        mismatch = agent_mismatch(agent, self.agents or {})
        if mismatch is None and marked and agent not in marked:
            return f"{_of_agent(agent)}, which is not marked as trainable (marked: {', '.join(marked)})"
        return mismatch


def agent_mismatch(agent: str | None, patterns: Mapping[str, str]) -> str | None:
    """Return why an agent does not match the regular expressions; None if all match.

    Args:
        agent: the agent's name; None if unknown.
        patterns: regular expressions by the name of their setting.
    """
    for setting, pattern in patterns.items():
        if agent is None or re.search(pattern, agent) is None:
            return f"{_of_agent(agent)}, which {setting}={pattern!r} does not match"
    return None


def _of_agent(agent: str | None) -> str:
    return "without an agent's name (`with agent(…):` gives calls one)" if agent is None else f"of agent {agent!r}"


def computes_reward(span: Span) -> bool:
    """Return True if LLM calls inside the span belong to a reward."""
    operation = span.attributes.get(LightningSpanAttributes.OPERATION_NAME.value)
    return operation == AGL_REWARD or is_reward_span(span)


class TraceToTokenTree(TraceAdapter[TokenTree]):
    """Adapter that builds one token tree of the spans of a rollout or of a group; common prefixes are stored once.

    Each attempt is a trajectory, numbered in the order of its first span.

    Args:
        trained: condition of the calls in the tree; by default all that were not made while a reward was computed.
    """

    def __init__(self, trained: TrainedCalls | None = None) -> None:
        self.trained = trained or TrainedCalls()

    def adapt(self, source: Sequence[Span], /) -> TokenTree:
        tree = TokenTree()
        for number, group in enumerate(by_attempt(source).values()):
            for record in self.trained.select(group).records:
                tree.insert(record, number)
        return tree
