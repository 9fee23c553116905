"""Events of agent-lightning 1.0, and the spans that they are here: rewards, model calls, and what an agent tells."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import Field, model_validator

from ...emitter import get_reward_value
from ...http import BadRequestError, Body
from ...semconv import AGL_ANNOTATION, LightningSpanAttributes
from ...semconv import CompletionSpanAttributes as Key
from ...types import Span, TraceStatus

_TYPE: Final = "agentlightning.event.type"
_DATA: Final = "agentlightning.event.data"
_REWARD: Final = LightningSpanAttributes.REWARD.value
_ROLLOUT: Final = "rollout"


class EventRequest(Body):
    """One event of an attempt. A `reward` has a number as its `value`, which is that of the whole rollout."""

    event_type: str = Field(min_length=1, max_length=200)
    data: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_finite(self) -> EventRequest:
        value = self.data.get("value")
        if self.event_type == "reward":
            if isinstance(value, bool):
                self.data["value"] = value = float(value)
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise BadRequestError(f"data.value: a reward is a finite number, not {value!r}", param="data.value")
        return self


def event_span(event: EventRequest, rollout_id: str, attempt_id: str, sequence_id: int) -> Span:
    """Return an event as a span; a reward is one that training reads."""
    facts: dict[str, Any] = {_TYPE: event.event_type, _DATA: json.dumps(event.data, ensure_ascii=False)}
    if event.event_type == "reward":
        facts |= {
            f"{_REWARD}.0.name": "primary",
            f"{_REWARD}.0.value": float(event.data["value"]),
            LightningSpanAttributes.REWARD_SCOPE.value: _ROLLOUT,
        }
    return Span.from_attributes(
        attributes=facts,
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=sequence_id,
        name=AGL_ANNOTATION,
        status=TraceStatus(status_code="OK"),
    )


def events_of(spans: Sequence[Span]) -> list[dict[str, Any]]:
    """Return the events among an attempt's spans, in their order."""
    found = []
    for span in spans:
        facts = span.attributes
        if _TYPE in facts:
            kind, data = str(facts[_TYPE]), json.loads(str(facts.get(_DATA, "{}")))
        elif span.name == Key.SPAN_NAME:
            kind, data = "model_request", _model_request(facts)
        elif (reward := get_reward_value(span)) is not None:
            kind, data = "reward", {"value": reward}
        else:
            continue
        ids = {"rollout_id": span.rollout_id, "attempt_id": span.attempt_id}
        found.append({"event_type": kind, **ids, "timestamp": span.end_time or span.start_time, "data": data})
    return found


def trimmed(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return events with nothing but the tokens of calls and the values of rewards; of several calls after the same
    prompt the last one."""
    last: dict[tuple[int, ...], int] = {}
    short: list[dict[str, Any]] = []
    for event in events:
        data = event["data"]
        if event["event_type"] == "model_request":
            response = data["response"]
            choice = response["choices"][0]
            data = {
                "prompt_token_ids": response["prompt_token_ids"],
                "response_token_ids": choice["token_ids"],
                "response_log_probs": [entry["logprob"] for entry in choice["logprobs"]["content"]],
                "server": {"model": data["model"], "version": data["model_version"]},
            }
            last[tuple(data["prompt_token_ids"])] = len(short)
        elif event["event_type"] == "reward":
            data = {name: data[name] for name in ("value", "source", "reason") if name in data}
        short.append({**event, "data": data})
    kept = set(last.values())
    return [event for at, event in enumerate(short) if event["event_type"] != "model_request" or at in kept]


def _model_request(facts: Mapping[str, Any]) -> dict[str, Any]:
    prompt, output = list(facts.get(Key.PROMPT_TOKEN_IDS, ())), list(facts.get(Key.RESPONSE_TOKEN_IDS, ()))
    reasons = facts.get(Key.FINISH_REASONS) or ["stop"]
    model, reason = facts.get(Key.REQUEST_MODEL), reasons if isinstance(reasons, str) else reasons[0]
    request = {"model": model, "temperature": facts.get(Key.REQUEST_TEMPERATURE)}
    request["messages"] = json.loads(str(facts.get(Key.INPUT_MESSAGES, "[]")))
    if Key.TOOL_DEFINITIONS in facts:
        request["tools"] = json.loads(str(facts[Key.TOOL_DEFINITIONS]))
    usage = {"prompt_tokens": len(prompt), "completion_tokens": len(output), "total_tokens": len(prompt) + len(output)}
    choice = {
        "index": facts.get(Key.CHOICE_INDEX, 0),
        "message": json.loads(str(facts.get(Key.OUTPUT_MESSAGES, "{}"))),
        "finish_reason": reason,
        "token_ids": output,
        "logprobs": {"content": [{"logprob": value} for value in facts.get(Key.RESPONSE_LOGPROBS, ())]},
    }
    response = {"id": facts.get(Key.RESPONSE_ID), "model": model, "prompt_token_ids": prompt, "choices": [choice]}
    return {
        "model": model,
        "model_version": facts.get(Key.POLICY_VERSION, 0),
        "request": request,
        "response": {**response, "usage": usage},
        "status": "ok",
        "usage": usage,
        "finish_reason": reason,
    }
