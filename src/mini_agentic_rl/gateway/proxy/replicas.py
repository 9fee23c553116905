"""Which of several servers of one model gets a request.

The calls of a rollout go to one server, whose prefix cache holds what they have in common. Servers are ranked for each
rollout by a hash of both (rendezvous hashing: Thaler and Ravishankar 1998), so that rollouts spread evenly, and only
those of a server that fails move, each to the next in its own ranking. A server that could not be reached is passed
over for a while.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from mini_agentic_rl.errors import UserError

from .upstream import Upstream

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
                raise UserError(f"model_list names {upstream.name!r} at {upstream.base_url} twice")
            servers.append(upstream)

    @property
    def names(self) -> list[str]:
        """What may be asked for, in the order given."""
        return list(self._by_name)

    def servers(self, name: str) -> Sequence[Upstream]:
        """Those of this model, in the order given; none if there is no such model."""
        return self._by_name.get(name, [])

    def ranked(self, name: str, rollout_id: str | None) -> list[Upstream]:
        """The servers of a model, best first; calls outside of any rollout take turns. Those down come last."""
        servers = self.servers(name)
        if rollout_id is None and servers:
            self._turn += 1
            first = self._turn % len(servers)
            ranked = [*servers[first:], *servers[:first]]
        else:
            ranked = sorted(servers, key=lambda server: _weight(server.base_url, rollout_id or ""))
        return sorted(ranked, key=self.is_down)

    def is_down(self, server: Upstream) -> bool:
        """Whether it could not be reached a short while ago."""
        return self._down_until.get(server.base_url, 0.0) > self._clock()

    def mark_down(self, server: Upstream, seconds: float = DOWN_SECONDS) -> None:
        """Ask it last for a while."""
        self._down_until[server.base_url] = self._clock() + seconds

    def mark_up(self, server: Upstream) -> None:
        """It has answered."""
        self._down_until.pop(server.base_url, None)

    def up(self) -> dict[str, float]:
        """For each server's URL, 1 if it is taken to be there, else 0."""
        servers = [server for group in self._by_name.values() for server in group]
        return {server.base_url: float(not self.is_down(server)) for server in servers}


def _weight(base_url: str, rollout_id: str) -> bytes:
    return hashlib.blake2b(f"{rollout_id}\n{base_url}".encode("utf-8", "replace"), digest_size=8).digest()
