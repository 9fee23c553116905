"""The wire form of a named call: entries of the W3C `baggage` header, which any client in any language can send.

baggage: agentlightning.rollout_id=ro-1,agentlightning.attempt_id=at-1,gen_ai.agent.name=planner
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from opentelemetry.baggage import get_all, set_baggage
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context

from ..semconv import CompletionSpanAttributes, LightningResourceAttributes

HEADER: Final = "baggage"

_ROLLOUT: Final = LightningResourceAttributes.ROLLOUT_ID.value
_ATTEMPT: Final = LightningResourceAttributes.ATTEMPT_ID.value
_AGENT: Final = CompletionSpanAttributes.AGENT_NAME
_UNNAMED: Final = "agentlightning.unnamed"

_propagator = W3CBaggagePropagator()


@dataclass(frozen=True)
class NamedCall:
    """The names that a call carries."""

    rollout_id: str | None = None
    attempt_id: str | None = None
    agent: str | None = None
    """Name of the agent that makes the call."""
    unnamed: str | None = None
    """Reason why a process that runs rollouts cannot say to which of them the call belongs; None where it can, or where
    nobody has to."""

    def text(self) -> str:
        """Return the value of the header; empty where there is nothing to say."""
        context, entries = (
            Context(),
            {
                _ROLLOUT: self.rollout_id,
                _ATTEMPT: self.attempt_id,
                _AGENT: self.agent,
                _UNNAMED: self.unnamed,
            },
        )
        for key, value in entries.items():
            if value is not None:
                context = set_baggage(key, value, context)
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, context)
        return carrier.get(HEADER, "")


def read_baggage(headers: Sequence[str]) -> NamedCall:
    """Read the values of a request's `baggage` headers; of several entries of one name the last counts."""
    found = get_all(_propagator.extract({HEADER: ",".join(headers)}, Context())) if headers else {}
    values = [str(found[key]) if found.get(key) else None for key in (_ROLLOUT, _ATTEMPT, _AGENT, _UNNAMED)]
    return NamedCall(*values)
