"""Agent-lightning's instrumentation functions, which have no effect here.

The gateway records all LLM calls with their tokens, whatever library makes them. Spans of libraries with OpenTelemetry
instrumentation are recorded after `mini_agentic_rl.init`.
"""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)

_REASON = "the gateway records the calls of models; for spans of other libraries call mini_agentic_rl.init()"


def instrument_all() -> None:
    """Log that nothing needs to be instrumented."""
    logger.info("nothing is instrumented: %s", _REASON)


def uninstrument_all() -> None:
    """Do nothing, since nothing was instrumented."""


instrument_agentops = instrument_litellm = instrument_vllm = instrument_agentops_langchain = instrument_all
uninstrument_agentops = uninstrument_litellm = uninstrument_vllm = uninstrument_agentops_langchain = uninstrument_all


def enable_agentops_service(enabled: bool = True) -> None:
    """Log that nothing is sent to the AgentOps service."""
    if enabled:
        logger.warning("nothing is sent to the AgentOps service: %s", _REASON)
