"""The bounds of a gateway. Each field is one option of `serve` or `train`: its docstring is the help text."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic.config import JsonDict

from mini_agentic_rl.config import Settings

_ROLLOUTS: JsonDict = {"panel": "Limits of a rollout"}
_REQUESTS: JsonDict = {"panel": "Limits of requests"}


class RolloutLimits(Settings):
    """How much one attempt of a rollout may ask of the model; a further attempt begins anew."""

    max_rollout_calls: int | None = Field(default=None, ge=1, json_schema_extra=_ROLLOUTS)
    """At most this many LLM calls in one attempt of a rollout; the next one is refused. Without it there is no
    bound."""
    max_rollout_tokens: int | None = Field(default=None, ge=1, json_schema_extra=_ROLLOUTS)
    """At most this many tokens in all LLM calls of one attempt together, prompts and answers; an answer that would pass
    it is cut short, the next call is refused. Without it there is no bound."""


class RequestLimits(Settings):
    """Which requests are taken at all. A key's bounds are its own; without keys all clients share one set."""

    max_body_bytes: int = Field(default=16 * 2**20, ge=1, json_schema_extra=_REQUESTS)
    """Larger request bodies are refused."""
    max_requests_per_minute: int | None = Field(default=None, ge=1, json_schema_extra=_REQUESTS)
    """At most this many requests a minute for each API key, all of them at once if need be; without it there is no
    bound."""
    max_concurrent_requests: int | None = Field(default=None, ge=1, json_schema_extra=_REQUESTS)
    """At most this many requests at the same time for each API key; without it there is no bound."""


class GatewayLimits(RolloutLimits, RequestLimits):
    """All bounds of a gateway: `MiniLLMServer(limits=…)`, `LLMProxy(limits=…)`, `MiniGRPO(limits=…)`."""

    when_paused: Literal["wait", "refuse"] = "wait"
    """What becomes of a request that arrives while the weights are updated: it waits, or is told to come again."""
