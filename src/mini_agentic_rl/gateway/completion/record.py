"""The endpoint is the recorder: every answer becomes one span with the exact tokens, stored before it is complete."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import log_failure
from ...http import LARGE, encode_in_steps, off_loop, size_of
from ...semconv import CompletionSpanAttributes as Attr
from ...semconv import GenAiAttributes, LightningResourceAttributes
from ...store import LightningStore
from ...tokens import SamplingParams
from ...types import OtelResource, Span, TraceStatus
from .attempts import not_recorded, unknown_attempt

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
    agent: str | None = None
    """Name of the agent that made the call, where it carries one."""
    traceparent: str | None = None
    """W3C trace context of the request, which places the span in the agent's own trace."""
    asked: Mapping[str, float | int] = field(default_factory=dict)
    """Settings of the request beside the temperature, under their names in the conventions for generative AI."""


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
    """Of the policy that sampled it; of several the first."""
    versions: Sequence[int] = ()
    """That of each token; empty where it is the same for all, or not known."""
    forced: Sequence[int] = ()
    """Indices of the tokens that a constraint left no choice about."""


def asked_for(sampling: SamplingParams) -> dict[str, float | int]:
    """Return what a call asked for beside the temperature: its bound, its seed, and what is not as usual."""
    found: dict[str, float | int] = {GenAiAttributes.REQUEST_MAX_TOKENS: sampling.max_tokens}
    if sampling.seed is not None:
        found[GenAiAttributes.REQUEST_SEED] = sampling.seed
    for name, value, usual in (
        (GenAiAttributes.REQUEST_TOP_P, sampling.top_p, 1.0),
        (GenAiAttributes.REQUEST_TOP_K, sampling.top_k, 0),
        (GenAiAttributes.REQUEST_PRESENCE_PENALTY, sampling.presence_penalty, 0.0),
        (GenAiAttributes.REQUEST_FREQUENCY_PENALTY, sampling.frequency_penalty, 0.0),
        (Attr.REPETITION_PENALTY, sampling.repetition_penalty, 1.0),
    ):
        if value != usual:
            found[name] = value
    return found


async def record_answer(store: LightningStore, call: CallContext, answer: RecordedAnswer, end_time: float) -> None:
    """Store the span of one answer; when this returns, the store has it.

    Raises:
        NotFoundError: the store knows no such rollout or attempt.
        RecordingError: the store failed.
    """
    try:
        sequence_id = await store.get_next_span_sequence_id(call.rollout_id, call.attempt_id)
        size = size_of([call.messages, call.tools, answer.message], LARGE)
        await store.add_span(await off_loop(size, lambda: _span(call, answer, sequence_id, end_time)))
    except ValueError as error:
        raise unknown_attempt(error) from error
    except Exception as error:  # any store may stand behind the contract; the agent must learn of it
        log_failure(logger, error, f"could not record a call of attempt {call.attempt_id} of rollout {call.rollout_id}")
        raise not_recorded(error) from error


def _span(call: CallContext, answer: RecordedAnswer, sequence_id: int, end_time: float) -> Span:
    parent = _TRACEPARENT.fullmatch(call.traceparent) if call.traceparent else None
    attributes: dict[str, Any] = {
        Attr.SYSTEM: "mini-agentic-rl",
        Attr.OPERATION: "chat",
        Attr.REQUEST_MODEL: call.model,
        Attr.REQUEST_TEMPERATURE: call.temperature,
        **call.asked,
        Attr.RESPONSE_ID: call.response_id,
        Attr.RESPONSE_MODEL: call.model,
        Attr.FINISH_REASONS: [answer.finish_reason],
        Attr.INPUT_MESSAGES: encode_in_steps(call.messages).decode(),
        Attr.OUTPUT_MESSAGES: encode_in_steps(answer.message).decode(),
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
    if len(set(answer.versions)) > 1:
        attributes[Attr.POLICY_VERSIONS] = list(answer.versions)
    if answer.token_ids and len(answer.logprobs) == len(answer.token_ids):
        attributes[Attr.RESPONSE_LOGPROBS] = list(answer.logprobs)
    else:
        attributes[Attr.UNTRAINABLE] = (
            f"the model's server told {len(answer.token_ids)} token ids and {len(answer.logprobs)} log-probabilities"
        )
    if call.agent is not None:
        attributes[Attr.AGENT_NAME] = call.agent
    if answer.forced:
        attributes[Attr.RESPONSE_FORCED_POSITIONS] = list(answer.forced)
    if call.tools:
        attributes[Attr.TOOL_DEFINITIONS] = encode_in_steps(call.tools).decode()
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
