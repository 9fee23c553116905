"""A hook that logs every rollout: its start, and at its end the reward, the duration and the number of LLM calls."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from ..emitter import find_final_reward
from ..semconv import AGL_EXCEPTION, FAILURE_REASON, CompletionSpanAttributes
from ..types import AttemptedRollout, Hook, Rollout, Span

logger = logging.getLogger(__name__)


class LoggingHook(Hook):
    """Logs at level INFO. Put it last, so that it sees the rewards of the hooks before it."""

    async def on_rollout_start(self, *, rollout: Rollout) -> None:  # type: ignore[override]  # names what it needs
        logger.info("%s starts", _label(rollout))

    async def on_rollout_end(  # type: ignore[override]  # names what it needs
        self, *, rollout: Rollout, spans: Sequence[Span]
    ) -> None:
        reward = find_final_reward(spans)
        responses = {
            span.attributes.get(CompletionSpanAttributes.RESPONSE_ID, span.span_id)
            for span in spans
            if span.name == CompletionSpanAttributes.SPAN_NAME
        }
        errors = [span.attributes.get(FAILURE_REASON, "") for span in spans if span.name == AGL_EXCEPTION]
        start = rollout.attempt.start_time if isinstance(rollout, AttemptedRollout) else rollout.start_time
        logger.info(
            "%s ends: reward %s, %.2f s, %d LLM calls%s",
            _label(rollout),
            "none" if reward is None else f"{reward:g}",
            time.time() - start,
            len(responses),
            f", {errors[-1]}" if errors and errors[-1] else "",
        )


def _label(rollout: Rollout) -> str:
    number = f" attempt {rollout.attempt.sequence_id}" if isinstance(rollout, AttemptedRollout) else ""
    return f"rollout {rollout.rollout_id}{number} ({rollout.mode or 'no mode'})"
