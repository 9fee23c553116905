"""Functions and settings of agent-lightning that have little or no effect here.

The gateway records all LLM calls with their tokens, whatever library makes them, so nothing is instrumented. Spans of
libraries with OpenTelemetry instrumentation are recorded after `mini_agentic_rl.init`. `names.MOVED` gives this module
its names `instrumentation`, with the modules below it, `utils.id` and `utils.server_launcher`.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass
from typing import Literal, TypeAlias

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


def generate_id(length: int) -> str:
    """Return a random string of `length` hexadecimal digits."""
    return secrets.token_hex((length + 1) // 2)[:length]


LaunchMode: TypeAlias = Literal["asyncio", "thread", "mp"]
"""Where agent-lightning runs a server. Every server of this package runs in a thread of its process."""


@dataclass
class PythonServerLauncherArgs:
    """Settings for `launcher_args` of a server; only host and port have an effect."""

    port: int | None = None
    host: str | None = None
    access_host: str | None = None
    launch_mode: LaunchMode = "asyncio"
    n_workers: int = 1
    healthcheck_url: str | None = None
    log_level: int = logging.INFO
    access_log: bool = False
    startup_timeout: float = 60.0
    kill_unhealthy_server: bool = True
    thread_join_timeout: float = 10.0
    process_join_timeout: float = 10.0
    timeout_keep_alive: int = 30
