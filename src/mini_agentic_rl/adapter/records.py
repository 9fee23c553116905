"""Convert spans to completion records: exactly the tokens that were sampled, call by call.

A client that retries sends the same prompt to the same model again and uses the last answer only. So of several
responses of one model to identical prompt ids within one attempt the last one stays, with all its choices.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..semconv import CompletionSpanAttributes as Key
from ..tokens import CompletionRecord, FinishReason
from ..types import Span
from .base import TraceAdapter, by_attempt
from .hierarchy import Hierarchy

logger = logging.getLogger(__name__)

_TOOL_CALLS: Final = re.compile(r'(?<!\\)"tool_calls"\s*:\s*\[\s*\{')
"""Tool calls in the JSON of a message; within a text of it quotes are escaped."""


class TraceToRecords(TraceAdapter[list[CompletionRecord]]):
    """Adapter that applies `spans_to_records`."""

    def adapt(self, source: Sequence[Span], /) -> list[CompletionRecord]:
        return spans_to_records(source)


def spans_to_records(spans: Sequence[Span]) -> list[CompletionRecord]:
    """Return the LLM calls among `spans`, ordered by `sequence_id` within each attempt, retries removed.

    Each record's `metadata` hold the `span_id` and the `agent_name`: the one on the call's span, else that of the
    nearest agent around it, else None. A completion span whose tokens are missing or do not fit together is left out
    and logged with its reason.
    """
    records: list[CompletionRecord] = []
    for group in by_attempt(spans).values():
        records += attempt_records(group, Hierarchy(group, repair=True))
    return records


def attempt_records(spans: Sequence[Span], tree: Hierarchy) -> list[CompletionRecord]:
    """Return the LLM calls of one attempt, as `spans_to_records`; `spans` are in the order of the store."""
    return _last_answers([record for span in spans if (record := _record(span, tree)) is not None])


def is_completion(span: Span) -> bool:
    """Return True if the span is an LLM call whose tokens are wanted."""
    return Key.PROMPT_TOKEN_IDS in span.attributes or span.name == Key.SPAN_NAME


def count_tool_calls(spans: Sequence[Span]) -> int | None:
    """Return the number of LLM calls among `spans` that were answered by a call of a tool, without reading their
    messages; None where none was offered a tool."""
    calls = [span.attributes for span in spans if is_completion(span)]
    if not any(Key.TOOL_DEFINITIONS in facts for facts in calls):
        return None
    return sum(_TOOL_CALLS.search(str(facts.get(Key.OUTPUT_MESSAGES, ""))) is not None for facts in calls)


def _last_answers(records: list[CompletionRecord]) -> list[CompletionRecord]:
    prompts = [(record.model, record.prompt_ids.tobytes()) for record in records]
    last = {prompt: record.response_id for prompt, record in zip(prompts, records, strict=True)}
    unique = {
        (prompt, record.choice): record
        for prompt, record in zip(prompts, records, strict=True)
        if record.response_id == last[prompt]
    }
    return sorted(unique.values(), key=lambda record: record.sequence_id)


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
    try:
        return CompletionRecord(
            prompt_ids=np.asarray(facts[Key.PROMPT_TOKEN_IDS], dtype=np.int64),
            output_ids=np.asarray(facts[Key.RESPONSE_TOKEN_IDS], dtype=np.int64),
            logprobs=np.asarray(facts[Key.RESPONSE_LOGPROBS], dtype=np.float32),
            forced=_forced(facts),
            version=int(facts.get(Key.POLICY_VERSION, 0)),
            versions=_versions(facts),
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
    """Return one flag for each sampled token: True where a constraint left no choice.

    Raises:
        ValueError: a position lies outside of the response.
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


def _versions(facts: Mapping[str, Any]) -> npt.NDArray[np.int64] | None:
    """Return the version that sampled each token; None where it is the same for all."""
    versions = facts.get(Key.POLICY_VERSIONS)
    return np.asarray(versions, dtype=np.int64) if versions else None


def _finish_reason(reasons: Sequence[str] | str | None) -> FinishReason:
    """Return the sampler's reason. A tool call, or any other end that the model chose, is a stop."""
    reason = reasons if isinstance(reasons, str) else (reasons or ["stop"])[0]
    if reason == "length":
        return "length"
    return "cancelled" if reason == "cancelled" else "stop"
