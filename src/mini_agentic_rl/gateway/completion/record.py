"""The endpoint is the recorder: every answer becomes one span with the exact tokens, stored before it is complete."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...semconv import CompletionSpanAttributes as Attr
from ...semconv import LightningResourceAttributes
from ...store import LightningStore
from ...types import OtelResource, Span, TraceStatus
from ..errors import NotFoundError, RecordingError

logger = logging.getLogger(__name__)

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


@dataclass(frozen=True)
class CallContext:
    """The facts that the spans of one call share."""

    rollout_id: str
    attempt_id: str
    response_id: str
    model: str
    messages: Sequence[dict[str, Any]]
    tools: Sequence[dict[str, Any]]
    prompt_ids: Sequence[int]
    temperature: float
    start_time: float
    """Seconds since the epoch."""
    traceparent: str | None = None
    """W3C trace context of the request, which places the span in the agent's own trace."""


@dataclass(frozen=True)
class RecordedAnswer:
    """One answer of a call."""

    index: int
    message: dict[str, Any]
    """The answer as the agent receives it."""
    finish_reason: str
    token_ids: Sequence[int]
    """Empty where the model's server does not tell them; then the call cannot be trained."""
    logprobs: Sequence[float]
    version: int = 0
    """Of the policy that sampled it."""
    forced: Sequence[int] = ()
    """Indices of the tokens that a constraint left no choice about."""


class Recorder:
    """Writes the spans of LLM calls into a store."""

    def __init__(self, store: LightningStore) -> None:
        self._store = store

    async def record(self, call: CallContext, answer: RecordedAnswer, end_time: float) -> None:
        """Store the span of one answer; when this returns, the store has it.

        Raises:
            NotFoundError: the store knows no such rollout or attempt.
            RecordingError: the store failed.
        """
        try:
            sequence_id = await self._store.get_next_span_sequence_id(call.rollout_id, call.attempt_id)
            await self._store.add_span(_span(call, answer, sequence_id, end_time))
        except ValueError as error:
            raise NotFoundError(f"the call cannot be recorded: {error}", code="rollout_not_found") from error
        except Exception as error:  # any store may stand behind the contract; the agent must learn of it
            logger.exception("could not record a call of attempt %s of rollout %s", call.attempt_id, call.rollout_id)
            raise RecordingError(f"the call could not be recorded: {error}", code="recording_failed") from error


def _span(call: CallContext, answer: RecordedAnswer, sequence_id: int, end_time: float) -> Span:
    parent = _TRACEPARENT.fullmatch(call.traceparent) if call.traceparent else None
    attributes: dict[str, Any] = {
        Attr.SYSTEM: "mini-agentic-rl",
        Attr.OPERATION: "chat",
        Attr.REQUEST_MODEL: call.model,
        Attr.REQUEST_TEMPERATURE: call.temperature,
        Attr.RESPONSE_ID: call.response_id,
        Attr.RESPONSE_MODEL: call.model,
        Attr.FINISH_REASONS: [answer.finish_reason],
        Attr.INPUT_MESSAGES: json.dumps(call.messages, ensure_ascii=False),
        Attr.OUTPUT_MESSAGES: json.dumps(answer.message, ensure_ascii=False),
        Attr.CHOICE_INDEX: answer.index,
    }
    if answer.token_ids:
        attributes |= {
            Attr.INPUT_TOKENS: len(call.prompt_ids),
            Attr.OUTPUT_TOKENS: len(answer.token_ids),
            Attr.PROMPT_TOKEN_IDS: list(call.prompt_ids),
            Attr.RESPONSE_TOKEN_IDS: list(answer.token_ids),
            Attr.POLICY_VERSION: answer.version,
        }
    if answer.token_ids and len(answer.logprobs) == len(answer.token_ids):
        attributes[Attr.RESPONSE_LOGPROBS] = list(answer.logprobs)
    else:
        attributes[Attr.UNTRAINABLE] = (
            f"the model's server told {len(answer.token_ids)} token ids and {len(answer.logprobs)} log-probabilities"
        )
    if answer.forced:
        attributes[Attr.RESPONSE_FORCED_POSITIONS] = list(answer.forced)
    if call.tools:
        attributes[Attr.TOOL_DEFINITIONS] = json.dumps(call.tools, ensure_ascii=False)
    return Span.from_attributes(
        attributes=attributes,
        rollout_id=call.rollout_id,
        attempt_id=call.attempt_id,
        sequence_id=sequence_id,
        name=Attr.SPAN_NAME,
        trace_id=parent.group(1) if parent else None,
        parent_id=parent.group(2) if parent else None,
        start_time=call.start_time,
        end_time=end_time,
        status=TraceStatus(status_code="OK"),
        resource=OtelResource(
            attributes={
                LightningResourceAttributes.ROLLOUT_ID.value: call.rollout_id,
                LightningResourceAttributes.ATTEMPT_ID.value: call.attempt_id,
                LightningResourceAttributes.SPAN_SEQUENCE_ID.value: sequence_id,
            }
        ),
    )
