"""Sessions: each client's models and samplers, the time of its last request, and snapshots to sample with."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import shutil
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ...http import ANYBODY, NotServedError, OverloadedError
from ...policy import Policy
from .promises import NumberedTurns
from .settings import GONE, NoWeightsError, RefusedError
from .training import SavedWeights, TrainedAdapter

_MOST_SAMPLERS: Final = 65_536


def owner_of(api_key: str) -> str:
    """Return the owner name of an API key, a digest of it; empty if the server needs no key."""
    if api_key == ANYBODY:
        return ""
    return hashlib.blake2b(api_key.encode(), digest_size=12, person=b"tinker-owner").hexdigest()


class UnknownClientError(NotServedError):
    """There is no session, model or sampler of this id, or it has ended."""

    def __init__(self, what: str, status: int = 404) -> None:
        super().__init__("", "", status)
        self.message = what


@dataclass
class ClientModel:
    """An adapter that a client trains, and the queue of its requests."""

    model_id: str
    base_model: str
    turns: NumberedTurns
    adapter: TrainedAdapter | None = None
    """None until it is made."""
    snapshot: tuple[int, SavedWeights] | None = None
    """The latest copy of its weights, with the number of changes behind them."""

    def made(self) -> TrainedAdapter:
        """Return the adapter."""
        if self.adapter is None:
            raise RefusedError(f"the model {self.model_id!r} could not be made, as its first request says")
        return self.adapter


@dataclass
class SamplingSession:
    """A sampling client, and the weights that it samples with."""

    session_id: str
    base_model: str
    model_path: str | None = None
    weights: SavedWeights | None = None
    """None for the base model."""
    joined: int = 0
    """Number of further processes that sample in it."""


@dataclass
class TinkerSession:
    """One client."""

    session_id: str
    owner: str
    heard_at: float
    models: dict[str, ClientModel] = field(default_factory=dict)
    samplers: dict[str, SamplingSession] = field(default_factory=dict)

    def add_sampler(self, sampler: SamplingSession) -> SamplingSession:
        """Add a sampling client."""
        if len(self.samplers) >= _MOST_SAMPLERS and sampler.session_id not in self.samplers:
            raise OverloadedError(
                f"this session has begun {_MOST_SAMPLERS} sampling sessions, which is the most: begin a new session"
            )
        self.samplers[sampler.session_id] = sampler
        return sampler


class TinkerSessions:
    """All sessions. Used from one event loop.

    Args:
        most: most sessions at once.
        clock: monotonic clock, in seconds.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._sessions: dict[str, TinkerSession] = {}

    def __iter__(self) -> Iterator[TinkerSession]:
        return iter(self._sessions.values())

    @property
    def full(self) -> bool:
        """True if no further session may begin."""
        return len(self._sessions) >= self._most

    def begin(self, owner: str = "") -> TinkerSession:
        """Return a new session."""
        if self.full:
            raise OverloadedError(f"{self._most} clients are here already, which is the most (max_clients)")
        session = TinkerSession(secrets.token_hex(12), owner, self._clock())
        self._sessions[session.session_id] = session
        return session

    def find(self, client_id: str, owner: str) -> TinkerSession | None:
        """Return the session of an id, or of the id of one of its models or samplers, and record that its client is
        alive; None if the owner has no such session."""
        session = self._sessions.get(client_id.partition(":")[0])
        if session is None or session.owner != owner:
            return None
        session.heard_at = self._clock()
        return session

    def hear(self, session_id: str, owner: str = "") -> TinkerSession:
        """Return a session, and record that its client is alive."""
        session = self.find(session_id, owner)
        if session is None:
            raise UnknownClientError(f"there is no session {session_id!r}, or it has ended: begin a new one", 410)
        return session

    def of_model(self, model_id: str, owner: str) -> tuple[TinkerSession, ClientModel]:
        """Return a client's model, and its session."""
        session = self.find(model_id, owner)
        if session is None or model_id not in session.models:
            raise UnknownClientError(
                f"there is no model {model_id!r} in training here, or not any more: create it from a saved state"
            )
        return session, session.models[model_id]

    def sampler(self, sampling_session_id: str, owner: str) -> tuple[TinkerSession, SamplingSession]:
        """Return a sampling client, and its session."""
        session = self.find(sampling_session_id, owner)
        if session is None or sampling_session_id not in session.samplers:
            raise UnknownClientError(f"there is no sampling session {sampling_session_id!r}, or not any more")
        return session, session.samplers[sampling_session_id]

    def end(self, session_id: str) -> TinkerSession | None:
        """Remove a session and return it."""
        return self._sessions.pop(session_id, None)

    def silent(self, seconds: float) -> list[str]:
        """Return the ids of sessions without a request for `seconds`."""
        until = self._clock() - seconds
        return [each.session_id for each in self._sessions.values() if each.heard_at < until]


# Copies of adapters in training, to sample with while the training goes on.


class Snapshots:
    """Unnamed copies of adapters. Used from one event loop.

    Args:
        folder: folder of the copies; removed by `close`.
        most: most copies; beyond it the least recently used copy of the client with most copies is dropped.
    """

    def __init__(self, policy: Policy, folder: Path, most: int) -> None:
        self._policy = policy
        self._folder = folder
        self._most = most
        self._kept: OrderedDict[str, tuple[str, SavedWeights]] = OrderedDict()
        """Session and weights of each copy, by their keys; the least recently used first."""
        self._made = 0

    async def take(self, model: ClientModel) -> SavedWeights:
        """Return a copy of a client's current weights; the last copy if they have not changed since."""
        adapter = model.made()
        if model.snapshot is not None:
            changes, weights = model.snapshot
            if changes == adapter.changes and weights.key in self._kept:
                self._kept.move_to_end(weights.key)
                return weights
        self._made += 1
        folder = self._folder / str(self._made)
        weights = SavedWeights(folder, adapter.shape, str(folder))
        await self._policy.run_async(lambda: adapter.save(folder, optimizer=False))
        model.snapshot = (adapter.changes, weights)
        self._kept[weights.key] = (model.model_id.split(":")[0], weights)
        while len(self._kept) > self._most:
            counts = Counter(session_id for session_id, _ in self._kept.values())
            most = max(counts.values())
            await self._drop(next(key for key, (session_id, _) in self._kept.items() if counts[session_id] == most))
        return weights

    async def end(self, session_id: str) -> None:
        """Drop the copies of a session that has ended."""
        for key in [key for key, (owner, _) in self._kept.items() if owner == session_id]:
            await self._drop(key)

    async def _drop(self, key: str) -> None:
        if key in self._kept:
            _, weights = self._kept.pop(key)
            await asyncio.to_thread(shutil.rmtree, weights.folder, ignore_errors=True)

    def use(self, weights: SavedWeights) -> None:
        """Mark weights as recently used."""
        if weights.key in self._kept:
            self._kept.move_to_end(weights.key)
        elif not weights.folder.is_dir():
            raise NoWeightsError(GONE)

    def close(self) -> None:
        """Remove all copies."""
        shutil.rmtree(self._folder, ignore_errors=True)
