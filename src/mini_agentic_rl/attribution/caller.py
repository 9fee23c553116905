"""The attempt and the agent of an LLM call, from the context or from the environment of the process.

On the wire they are entries of the W3C `baggage` header, which any client in any language can send:

    baggage: agentlightning.rollout_id=ro-1,agentlightning.attempt_id=at-1,gen_ai.agent.name=planner

A process that an agent starts finds its attempt in environment variables. A program of any language that reads
`OPENAI_BASE_URL` calls the URL of the rollout. A Python program that calls a fixed address is attributed once it
imports `mini_agentic_rl`.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlsplit

from opentelemetry.baggage import get_all, set_baggage
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context

from ..errors import UserError
from ..http import is_loopback
from ..semconv import CompletionSpanAttributes, LightningResourceAttributes

HEADER: Final = "baggage"

_ROLLOUT: Final = LightningResourceAttributes.ROLLOUT_ID.value
_ATTEMPT: Final = LightningResourceAttributes.ATTEMPT_ID.value
_AGENT: Final = CompletionSpanAttributes.AGENT_NAME
_UNNAMED: Final = "agentlightning.unnamed"

_propagator = W3CBaggagePropagator()


@dataclass(frozen=True)
class NamedCall:
    """The attempt and the agent of a call."""

    rollout_id: str | None = None
    attempt_id: str | None = None
    agent: str | None = None
    """Name of the agent."""
    unnamed: str | None = None
    """Reason why a process that runs rollouts cannot name the attempt; None if it can, or need not."""

    def text(self) -> str:
        """Return the value of the header; empty without names."""
        context = Context()
        entries = {
            _ROLLOUT: self.rollout_id,
            _ATTEMPT: self.attempt_id,
            _AGENT: self.agent,
            _UNNAMED: self.unnamed,
        }
        for key, value in entries.items():
            if value is not None:
                context = set_baggage(key, value, context)
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, context)
        return carrier.get(HEADER, "")


def read_baggage(headers: Sequence[str]) -> NamedCall:
    """Read the `baggage` headers of a request; of several entries with one name the last counts."""
    entries = get_all(_propagator.extract({HEADER: ",".join(headers)}, Context())) if headers else {}
    values = [str(entries[key]) if entries.get(key) else None for key in (_ROLLOUT, _ATTEMPT, _AGENT, _UNNAMED)]
    return NamedCall(*values)


if TYPE_CHECKING:
    from ..types import ProxyLLM

Origin: TypeAlias = tuple[str, int]
"""(host, port) of a server; all names of this computer are one host."""

_PORTS: Final = {"http": 80, "https": 443}
_THIS_COMPUTER: Final = "loopback"
_OWN_NAMES: Final = frozenset({"0.0.0.0", "::", socket.gethostname().lower()})


def origin_of(host: str, port: int | None, scheme: str = "http") -> Origin:
    """Return the origin of a server."""
    name = host.lower().strip("[]")
    known = _THIS_COMPUTER if name in _OWN_NAMES or is_loopback(name) else name
    return known, port or _PORTS.get(scheme, 0)


def origin_of_url(url: str) -> Origin:
    """Return the origin of a URL."""
    parts = urlsplit(url)
    return origin_of(parts.hostname or "", parts.port, parts.scheme)


@dataclass(frozen=True)
class CallingAttempt:
    """An attempt whose agent makes LLM calls."""

    rollout_id: str
    attempt_id: str
    llms: Mapping[str, ProxyLLM] = field(default_factory=dict, compare=False)
    """Endpoints of a gateway among the agent's resources, by name."""
    origins: frozenset[Origin] = field(default=frozenset(), compare=False)
    """Origins of these gateways."""

    def named(self, agent: str | None) -> NamedCall:
        """Return the names of a call by this agent."""
        return NamedCall(self.rollout_id, self.attempt_id, agent)


class Outside:
    """Type of `OUTSIDE`, the value of a context whose calls belong to no attempt."""


OUTSIDE: Final = Outside()

current: ContextVar[CallingAttempt | Outside | None] = ContextVar("calling_attempt", default=None)
"""Attempt of calls in this context; None if unknown."""
_agent: ContextVar[str | None] = ContextVar("calling_agent", default=None)

_lock = threading.Lock()
_running: Counter[CallingAttempt] = Counter()
"""Attempts whose agents run in this process."""
_gateways: Counter[Origin] = Counter()
"""Gateways that this process serves."""


class _Setting(AbstractContextManager[None]):
    """A block in which a context variable has another value.

    It cannot be used as a decorator, which would not cover the body of an async function.
    """

    def __init__(self, variable: ContextVar[Any], value: Any) -> None:
        self._variable = variable
        self._value = value
        self._tokens: list[Token[Any]] = []

    def __enter__(self) -> None:
        self._tokens.append(self._variable.set(self._value))

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._tokens.pop())


def unrecorded() -> AbstractContextManager[None]:
    """Attribute the calls of a block, `with unrecorded():`, to no attempt: they are not recorded and not trained.

    It is meant for a judge or a chat that calls the model at its plain URL while rollouts run. A call to the URL of a
    rollout is recorded in any case.
    """
    return _Setting(current, OUTSIDE)


def agent(name: str) -> AbstractContextManager[None]:
    """Name the agent of the LLM calls in a block, `with agent("planner"):`, for any client.

    `trained_agents`, an adapter's `agent_match` and `Rollout.mark_agent_as_trainable` select the trained calls by this
    name. Of nested blocks the innermost counts.

    Raises:
        ValueError: the name is empty.
    """
    if not name:
        raise ValueError("agent() takes the name of an agent, not ''")
    return _Setting(_agent, name)


def gateway_started(url: str) -> None:
    """Note that this process serves a gateway at this URL."""
    with _lock:
        _gateways[origin_of_url(url)] += 1


def gateway_stopped(url: str) -> None:
    """Note that this process no longer serves a gateway at this URL."""
    with _lock:
        _gateways[origin_of_url(url)] -= 1


@contextmanager
def running(attempt: CallingAttempt) -> Iterator[None]:
    """Set the attempt of this context, and count it as running, for the duration of a block."""
    with _lock:
        _running[attempt] += 1
    try:
        with _Setting(current, attempt), _Setting(_agent, None):
            yield
    finally:
        with _lock:
            _running[attempt] -= 1
            if not _running[attempt]:
                del _running[attempt]


def origins_of(urls: Collection[str]) -> frozenset[Origin]:
    """Return the origins of URLs."""
    return frozenset(map(origin_of_url, urls))


ATTEMPT_VARIABLE: Final = "MINI_AGENTIC_RL_ATTEMPT"
"""Environment variable with the attempt and the agent in the form of the `baggage` header."""
GATEWAYS_VARIABLE: Final = "MINI_AGENTIC_RL_GATEWAYS"
"""Environment variable with the URLs of the gateways that get these names, separated by spaces."""

_OTEL_VARIABLE: Final = "OTEL_RESOURCE_ATTRIBUTES"


def rollout_environment(llm: str | None = None) -> dict[str, str]:
    """Return the environment for a process of the running agent: `subprocess.run(…, env=rollout_environment())`.

    It is that of this process, with the rollout's URL and key as `OPENAI_BASE_URL` and `OPENAI_API_KEY`, and as
    `ANTHROPIC_BASE_URL` and `ANTHROPIC_API_KEY`; with the ids of the rollout in `OTEL_RESOURCE_ATTRIBUTES`, for spans;
    and with the variables by which `mini_agentic_rl` attributes calls to a fixed address.

    Args:
        llm: name of the resource with the endpoint; may be omitted if all are served by one gateway.

    Raises:
        RuntimeError: no rollout runs here.
        UserError: there is no such resource, or `llm` is missing and there are several.
    """
    attempt = current.get()
    if not isinstance(attempt, CallingAttempt):
        raise RuntimeError("no rollout runs here: ask inside of an agent")
    by_url = {resource.endpoint: resource for resource in attempt.llms.values()}
    names = ", ".join(attempt.llms) or "none"
    if llm is not None and llm not in attempt.llms:
        raise UserError(f"the rollout has no model {llm!r} behind a gateway (it has {names})")
    if llm is None and len(by_url) != 1:
        raise UserError(f"say which model the process is to ask: the rollout has {names}")
    chosen = attempt.llms[llm] if llm is not None else next(iter(by_url.values()))
    url = chosen.get_base_url(attempt.rollout_id, attempt.attempt_id)
    key = chosen.api_key or "none"
    ids = {
        LightningResourceAttributes.ROLLOUT_ID.value: attempt.rollout_id,
        LightningResourceAttributes.ATTEMPT_ID.value: attempt.attempt_id,
    }
    before = [os.environ[_OTEL_VARIABLE]] if os.environ.get(_OTEL_VARIABLE) else []
    return {
        **os.environ,
        ATTEMPT_VARIABLE: attempt.named(_agent.get()).text(),
        GATEWAYS_VARIABLE: " ".join(by_url),
        "OPENAI_BASE_URL": url,
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": key,
        _OTEL_VARIABLE: ",".join([*before, *(f"{name}={value}" for name, value in ids.items())]),
    }


@lru_cache(maxsize=64)
def _attempt_in(text: str, gateways: str) -> tuple[CallingAttempt, str | None] | None:
    """Return the attempt and the agent that the environment variables name; None without an attempt."""
    named = read_baggage([text])
    if named.rollout_id is None or named.attempt_id is None:
        return None
    return CallingAttempt(named.rollout_id, named.attempt_id, origins=origins_of(gateways.split())), named.agent


ENDED: Final = "it was made in the context of an attempt that has ended"
_OF_ATTEMPT: Final = re.compile(r"/rollout/[^/]+/attempt/[^/]+(/|$)")
NOWHERE: Final = "it was made outside of every rollout's context, in a process that runs rollouts"


def is_recorded(url: str) -> bool:
    """Return True if a gateway records calls from here to this URL, by the URL itself or by the `baggage` header."""
    return bool(_OF_ATTEMPT.search(urlsplit(url).path)) or names_for(origin_of_url(url)) is not None


def names_for(origin: Origin) -> NamedCall | None:
    """Return the names of a call from here; None if the server is no gateway, or the call belongs to no attempt.

    The context names the attempt, else the environment. If neither does while agents run in this process, the call is
    marked as unnamed.
    """
    where, agent = current.get(), _agent.get()
    if isinstance(where, Outside):
        return None
    with _lock:
        running, ours = list(_running), _gateways[origin] > 0
    if where is not None:
        if not ours and origin not in where.origins:
            return None
        return where.named(agent) if where in running else NamedCall(agent=agent, unnamed=ENDED)
    text = os.environ.get(ATTEMPT_VARIABLE)
    inherited = _attempt_in(text, os.environ.get(GATEWAYS_VARIABLE, "")) if text else None
    if inherited is not None:
        attempt, its_agent = inherited
        return attempt.named(agent or its_agent) if ours or origin in attempt.origins else None
    if running and (ours or any(origin in attempt.origins for attempt in running)):
        return NamedCall(agent=agent, unnamed=NOWHERE)
    return None
