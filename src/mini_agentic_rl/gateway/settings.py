"""Settings of an endpoint: address, keys, formats of answers, and limits of requests and rollouts."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic.config import JsonDict

from ..config import Settings
from ..http import RequestLimits
from .render.decoding import ThinkingName
from .tool_formats import ToolFormatName


class AnswerSettings(Settings):
    """Formats in which a model's replies are read and its history is written."""

    tool_format: ToolFormatName = "auto"
    """Form in which tool calls are written; auto takes what an adapter was trained with, else what the chat template
    writes, and Hermes where that cannot be read back; compact is then the form with the fewest tokens."""
    thinking: ThinkingName = "auto"
    """Earlier thoughts that the model is shown: `keep` all, `drop` all, `fork` (as the chat template does
    it); `off`: think tags are ordinary text; auto is fork for models that know think tags, off for others."""


class AddressSettings(Settings):
    """The address that a server listens on."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 lets other machines in, and then needs a key."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    drain_seconds: float = Field(default=30.0, ge=0, allow_inf_nan=False)
    """Seconds that requests under way get when the server is asked to end; a second signal ends it at once."""


class ServerSettings(AddressSettings):
    """The address that a server listens on, and its API keys."""

    api_key: list[str] = Field(default=[], repr=False)
    """Key that clients must send; give it several times for several clients. Without a key everybody who reaches the
    port may use it."""
    api_key_file: Path | None = None
    """File with one such key on each line: other users of this computer cannot read it off the command line."""


class SessionSettings(Settings):
    """Consent of those whose conversations are recorded, and how long they are kept."""

    consent: Literal["ask", "assume"] = "ask"
    """Treatment of a session that says nothing about consent: `ask` records only those that say yes, `assume`
    all but those that say no."""
    keep_days: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    """Days after which a session is deleted, whether it was learnt from or not."""


_ROLLOUTS: JsonDict = {"panel": "Limits of a rollout"}
_REQUESTS: JsonDict = {"panel": "Limits of requests"}


class RolloutLimits(Settings):
    """Bounds on the model calls of each attempt of a rollout."""

    max_rollout_calls: int | None = Field(default=None, ge=1, json_schema_extra=_ROLLOUTS)
    """At most this many LLM calls in one attempt of a rollout; the next one is refused. Without it there is no
    bound."""
    max_rollout_tokens: int | None = Field(default=None, ge=1, json_schema_extra=_ROLLOUTS)
    """At most this many tokens in all LLM calls of one attempt together, prompts and answers; an answer that would pass
    it is cut short, the next call is refused. Without it there is no bound."""


class GrammarLimits(Settings):
    """Bounds on what the form of an answer may take to be compiled: its JSON schemas, and those of its tools."""

    max_grammar_seconds: float = Field(default=1.0, gt=0, le=60, json_schema_extra=_REQUESTS)
    """Refuse the form of an answer (JSON schemas) that takes more processor time than this to compile."""
    max_grammar_mib: int = Field(default=256, ge=16, json_schema_extra=_REQUESTS)
    """Refuse the form of an answer that takes more memory than this to compile (Linux)."""


class GatewayLimits(RolloutLimits, RequestLimits, GrammarLimits):
    """All bounds of a gateway: `MiniLLMServer(limits=…)`, `LLMProxy(limits=…)`, `MiniGRPO(limits=…)`."""

    when_paused: Literal["wait", "refuse"] = "wait"
    """Treatment of a request that arrives while the weights are updated: it waits, or gets status 429."""
