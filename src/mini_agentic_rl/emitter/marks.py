"""Record in the open trace which agent is marked as trainable, and read the marks back.

`litagent` makes `emit_trainable_agent` what `Rollout.mark_agent_as_trainable` calls.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ..semconv import AGL_ANNOTATION, LightningSpanAttributes
from ..tracer import get_active_tracer
from .emit import emit
from .readers import SpanLike

logger = logging.getLogger(__name__)

_KEY = LightningSpanAttributes.TRAINABLE_AGENT.value


def find_trainable_agents(spans: Iterable[SpanLike]) -> list[str]:
    """The agents that `Rollout.mark_agent_as_trainable` named, in the order of the spans."""
    names = [str((span.attributes or {})[_KEY]) for span in spans if _KEY in (span.attributes or {})]
    return list(dict.fromkeys(names))


def emit_trainable_agent(agent_id: str) -> None:
    """Annotate the open trace with the mark; outside of every trace, log that nobody else learns of it."""
    if get_active_tracer() is None:
        logger.warning("agent %r is marked outside of its rollout: only the rollout object knows of it", agent_id)
        return
    emit(AGL_ANNOTATION, {_KEY: agent_id}, propagate=True)
