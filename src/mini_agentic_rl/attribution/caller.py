"""The attempt and the agent that a call belongs to, as far as the place that it is made from tells."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlsplit

from ..http import is_loopback
from .baggage import NamedCall

if TYPE_CHECKING:
    from ..types import ProxyLLM

Origin: TypeAlias = tuple[str, int]
"""(host, port) of a server; the names of this computer are one host."""

_PORTS: Final = {"http": 80, "https": 443}
_THIS_COMPUTER: Final = "loopback"
_OWN_NAMES: Final = frozenset({"0.0.0.0", "::", socket.gethostname().lower()})


def origin_of(host: str, port: int | None, scheme: str = "http") -> Origin:
    """Return the origin of a server as its clients name it."""
    name = host.lower().strip("[]")
    known = _THIS_COMPUTER if name in _OWN_NAMES or is_loopback(name) else name
    return known, port or _PORTS.get(scheme, 0)


def origin_of_url(url: str) -> Origin:
    """Return the origin of a URL."""
    parts = urlsplit(url)
    return origin_of(parts.hostname or "", parts.port, parts.scheme)


@dataclass(frozen=True)
class CallingAttempt:
    """An attempt whose agent makes calls."""

    rollout_id: str
    attempt_id: str
    llms: Mapping[str, ProxyLLM] = field(default_factory=dict, compare=False)
    """The endpoints behind a gateway that the agent was given, by the names of their resources."""
    origins: frozenset[Origin] = field(default=frozenset(), compare=False)
    """Gateways that these endpoints stand for."""

    def named(self, agent: str | None) -> NamedCall:
        """Return the names of a call of the attempt."""
        return NamedCall(self.rollout_id, self.attempt_id, agent)


class Outside:
    """Mark a context whose calls belong to no attempt."""


OUTSIDE: Final = Outside()

current: ContextVar[CallingAttempt | Outside | None] = ContextVar("calling_attempt", default=None)
"""Attempt that calls made here belong to; None where nobody has said anything."""
_agent: ContextVar[str | None] = ContextVar("calling_agent", default=None)

_lock = threading.Lock()
_running: Counter[CallingAttempt] = Counter()
"""Attempts whose agents run in this process at the moment."""
_gateways: Counter[Origin] = Counter()
"""Gateways that this process serves."""


class _Setting(AbstractContextManager[None]):
    """A block in which a context variable has another value.

    It is no decorator: of an async function that would cover the call, and not what is awaited.
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
    """Leave the calls inside of a block, `with unrecorded():`, to no attempt: answered, not recorded, not trained.

    For a judge or a chat that asks the model at its plain URL while rollouts run. A call at the URL of a rollout
    belongs to that rollout all the same.
    """
    return _Setting(current, OUTSIDE)


def agent(name: str) -> AbstractContextManager[None]:
    """Name the agent that makes the LLM calls inside of a block, `with agent("planner"):`, in whatever client.

    `trained_agents`, an adapter's `agent_match` and `Rollout.mark_agent_as_trainable` choose by this name whose calls
    are trained. Of nested blocks the innermost counts.

    Raises:
        ValueError: the name is empty.
    """
    if not name:
        raise ValueError("agent() takes the name of an agent, not ''")
    return _Setting(_agent, name)


def current_agent() -> str | None:
    """Return the name of the agent that calls are made by here."""
    return _agent.get()


def gateway_started(url: str) -> None:
    """Note that this process serves a gateway there."""
    with _lock:
        _gateways[origin_of_url(url)] += 1


def gateway_stopped(url: str) -> None:
    """Note that it serves it no longer."""
    with _lock:
        _gateways[origin_of_url(url)] -= 1


def gateway_is_ours(origin: Origin) -> bool:
    """Return True if this process serves a gateway there."""
    with _lock:
        return _gateways[origin] > 0


@contextmanager
def running(attempt: CallingAttempt) -> Iterator[None]:
    """Have an attempt stand in the context, and count as one that runs, as long as the block lasts."""
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


def running_attempts() -> Collection[CallingAttempt]:
    """Return the attempts whose agents run in this process at the moment."""
    with _lock:
        return list(_running)


def calling_attempt() -> CallingAttempt:
    """Return the attempt whose agent runs here.

    Raises:
        RuntimeError: none does.
    """
    attempt = current.get()
    if not isinstance(attempt, CallingAttempt):
        raise RuntimeError("no rollout runs here: ask inside of an agent")
    return attempt


def origins_of(urls: Collection[str]) -> frozenset[Origin]:
    """Return the origins of URLs."""
    return frozenset(map(origin_of_url, urls))
