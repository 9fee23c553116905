"""All servers of others: which of them gets a request, connections, retries with backoff, the way to another server.

The calls of a rollout go to one server, whose prefix cache holds what they have in common. Servers are ranked for each
rollout by a hash of both (rendezvous hashing: Thaler and Ravishankar 1998), so that rollouts spread evenly, and only
those of a server that fails move, each to the next in its own ranking. A server that could not be reached is passed
over for a while. Nothing is sent again once an answer has begun, or after a server was silent for as long as it may be.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Final

import httpx

from ...attribution import unrecorded
from ...errors import UserError
from ...http import LARGE, encode_in_steps, off_loop, size_of
from ..errors import UnknownModelError
from .reading import ACCEPTED
from .upstream import Upstream, UpstreamSilentError, UpstreamUnreachableError

DOWN_SECONDS: Final = 10.0
"""For how long a server that could not be reached is asked last."""


class Replicas:
    """All servers, by the names of their models. Used from one event loop once requests come.

    Args:
        entries: see `Upstream.of`; several of one name are servers of the same model.
        clock: seconds that never go back.

    Raises:
        UserError: an entry does not say where its model is served, or one server is there twice.
    """

    def __init__(
        self, entries: Iterable[Upstream | Mapping[str, Any]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._by_name: dict[str, list[Upstream]] = {}
        self._down_until: dict[str, float] = {}
        self._turn = 0
        for upstream in map(Upstream.of, entries):
            servers = self._by_name.setdefault(upstream.name, [])
            if any(known.base_url == upstream.base_url for known in servers):
                raise UserError(f"{upstream.name!r} stands at {upstream.shown_url} twice", setting="model_list")
            servers.append(upstream)

    @property
    def names(self) -> list[str]:
        """Names that may be asked for, in the order given."""
        return list(self._by_name)

    def servers(self, name: str) -> Sequence[Upstream]:
        """Return those of this model, in the order given; none if there is no such model."""
        return self._by_name.get(name, [])

    def ranked(self, name: str, rollout_id: str | None) -> list[Upstream]:
        """Return the servers of a model, best first; calls outside of any rollout take turns. Those down come last."""
        servers = self.servers(name)
        if rollout_id is None and servers:
            self._turn += 1
            first = self._turn % len(servers)
            ranked = [*servers[first:], *servers[:first]]
        else:
            ranked = sorted(servers, key=lambda server: _weight(server.base_url, rollout_id or ""))
        return sorted(ranked, key=self.is_down)

    def is_down(self, server: Upstream) -> bool:
        """Return True if it could not be reached a short while ago."""
        return self._down_until.get(server.base_url, 0.0) > self._clock()

    def mark_down(self, server: Upstream, seconds: float = DOWN_SECONDS) -> None:
        """Ask it last for a while."""
        self._down_until[server.base_url] = self._clock() + seconds

    def mark_up(self, server: Upstream) -> None:
        """Ask it as any other again: it has answered."""
        self._down_until.pop(server.base_url, None)

    def up(self) -> dict[str, float]:
        """Return, for each server's URL, 1 if it is taken to be there, else 0."""
        servers = [server for group in self._by_name.values() for server in group]
        return {server.shown_url: float(not self.is_down(server)) for server in servers}


def _weight(base_url: str, rollout_id: str) -> bytes:
    return hashlib.blake2b(f"{rollout_id}\n{base_url}".encode("utf-8", "replace"), digest_size=8).digest()


RETRIED_STATUSES: Final = frozenset({408, 429, 500, 502, 503, 504})
AWAY_STATUSES: Final = frozenset({502, 503, 504})
"""Of these, those that say that another server may do better."""
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 20.0


class Upstreams:
    """All upstreams, and one pool of connections to them. Used from one event loop once requests come.

    Args:
        entries: see `Replicas`.
        num_retries: how often a request is sent again after a failed connection or an answer of 408, 429 or 5xx; going
            on to another server of the same model at once does not count.
        timeout: seconds that an upstream may be silent.
        connect_timeout: seconds within which a connection has to be made.

    Raises:
        UserError: an entry does not say where its model is served, or one server is there twice.
        ValueError: a negative number of retries, or a timeout that is not positive.
    """

    def __init__(
        self,
        entries: Iterable[Upstream | Mapping[str, Any]],
        *,
        num_retries: int,
        timeout: float,
        connect_timeout: float = 5.0,
    ) -> None:
        if num_retries < 0:
            raise ValueError(f"num_retries={num_retries}: expected 0 or more")
        for setting, seconds in (("timeout", timeout), ("connect_timeout", connect_timeout)):
            if seconds <= 0:
                raise ValueError(f"{setting}={seconds}: expected seconds, more than 0")
        self.replicas = Replicas(entries)
        self.sent: Counter[tuple[str, ...]] = Counter()
        """Tries by server URL and outcome: `answered`, `refused` (4xx, 5xx), `unreachable`, `silent`."""
        self._num_retries = num_retries
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._client: httpx.AsyncClient | None = None
        self._client_loop: asyncio.AbstractEventLoop | None = None

    def replace(self, entries: Iterable[Upstream | Mapping[str, Any]]) -> None:
        """Serve these from now on; callable from any thread.

        Raises:
            UserError: as the constructor; then nothing changes.
        """
        self.replicas = Replicas(entries)

    @property
    def names(self) -> list[str]:
        """Names that may be asked for, in the order given."""
        return self.replicas.names

    async def send(
        self, name: str, path: str, body: Callable[[Upstream], dict[str, Any]], rollout_id: str | None = None
    ) -> tuple[Upstream, httpx.Response]:
        """Send a request; return the server and its answer, whose body is still to be read: close it with `aclose`.

        Args:
            name: the model.
            path: below the server's URL.
            body: the request as a server gets it.
            rollout_id: whose calls go to one server as long as that is there.

        Raises:
            UnknownModelError: there is no such model.
            UpstreamUnreachableError: no server of it could be reached, however often it was tried.
            UpstreamSilentError: a server took the request and said nothing.
        """
        replicas = self.replicas
        if not replicas.servers(name):
            raise UnknownModelError(name, self.names)
        retries = 0
        tried: set[str] = set()
        while True:
            server = replicas.ranked(name, rollout_id)[0]
            tried.add(server.base_url)
            answer: httpx.Response | None = None
            failure = ""
            try:
                answer = await self._send(server, path, body(server))
            except httpx.TransportError as error:
                failure = server.without_key(f"{type(error).__name__}: {error}")
                replicas.mark_down(server)
            asked_pause = None if answer is None else _asked_pause(answer)
            if answer is not None:
                if answer.status_code not in RETRIED_STATUSES:
                    replicas.mark_up(server)
                    return server, answer
                if answer.status_code in AWAY_STATUSES:
                    replicas.mark_down(server, asked_pause or DOWN_SECONDS)
            elsewhere = replicas.ranked(name, rollout_id)[0]
            moves_on = elsewhere.base_url not in tried and not replicas.is_down(elsewhere)
            if not moves_on and retries == self._num_retries:
                if answer is not None:
                    return server, answer
                raise UpstreamUnreachableError(
                    f"{server.shown_url} does not answer for model {name!r}: {failure}", code="upstream_unavailable"
                )
            if answer is not None:
                await answer.aclose()
            if not moves_on:
                await asyncio.sleep(_pause(retries, asked_pause))
                retries += 1

    async def _send(self, server: Upstream, path: str, body: dict[str, Any]) -> httpx.Response:
        headers = {"content-type": "application/json", "accept-encoding": ACCEPTED}
        if server.api_key is not None:
            headers["authorization"] = f"Bearer {server.api_key}"
        silence = server.timeout or self._timeout
        timeout = httpx.Timeout(silence, connect=server.connect_timeout or self._connect_timeout, pool=None)
        pool = self._pool()
        url = httpx.URL(f"{server.base_url}{path}")
        # what httpx logs has no password: it is told beside the URL
        auth = httpx.BasicAuth(url.username, url.password) if url.userinfo else None
        content = await off_loop(size_of(body, LARGE), lambda: encode_in_steps(body))
        request = pool.build_request(
            "POST", url.copy_with(userinfo=b""), content=content, headers=headers, timeout=timeout
        )
        try:
            with unrecorded():  # the call was recorded here, or is of nobody
                answer = await pool.send(request, stream=True, auth=auth)
        except httpx.ReadTimeout as error:
            self.sent[server.shown_url, "silent"] += 1
            raise silent(server, silence) from error
        except httpx.TransportError:
            self.sent[server.shown_url, "unreachable"] += 1
            raise
        self.sent[server.shown_url, "refused" if answer.is_error else "answered"] += 1
        return answer

    def silence(self, server: Upstream) -> float:
        """Return the seconds that a server may be silent."""
        return server.timeout or self._timeout

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def _pool(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._client is None or self._client_loop is not loop:  # connections die with the loop of a server
            self._client_loop = loop
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
            self._client = httpx.AsyncClient(limits=limits)
        return self._client


def silent(server: Upstream, seconds: float) -> UpstreamSilentError:
    """Return the error for a server that says nothing."""
    return UpstreamSilentError(
        f"{server.shown_url} said nothing for {seconds:g} seconds (timeout) for model {server.name!r}",
        code="upstream_timeout",
    )


def _pause(retries: int, asked: float | None) -> float:
    """Return the seconds before the next try: what the server asked for, else twice as long each time, with jitter."""
    if asked is not None:
        return asked
    return min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0**retries) * random.uniform(0.5, 1.0)


def _asked_pause(answer: httpx.Response) -> float | None:
    """Return what `Retry-After` says, in seconds or as a date; None where it says nothing that can be read."""
    text = answer.headers.get("retry-after", "")
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, OverflowError, OSError):  # no date, or one that no clock tells
            return None
    return min(_LONGEST_PAUSE_SECONDS, max(0.0, seconds))
