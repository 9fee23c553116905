"""The work behind the routes: the clients' sessions, trainings and samplings, without HTTP.

A request that takes long is answered at once with a promise. Used from one event loop, but for `close`.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, Final

from ...policy import LearnerSettings, Policy, learning_chunk
from .checkpoints import CheckpointFolder
from .promises import Promise, Promises
from .sampling import ClientSampler, PromptScorer
from .sessions import SamplingSession, Snapshots, TinkerSession, TinkerSessions
from .settings import ClientSettings, RefusedError
from .training import SamplerSlots, SavedWeights
from .trainings import ClientTrainings
from .wire.data import SampleRequest, sound
from .wire.messages import SamplingSessionBody, SessionBody
from .wire.results import SampleAnswer

logger = logging.getLogger(__name__)


_SWEEP_SECONDS: Final = 5.0
_MISSED_SECONDS: Final = 60.0
"""A client sends a heartbeat every 10 seconds; after this long without one it may be ended to make room for another."""


@dataclass(frozen=True)
class TinkerModel:
    """The model that is served."""

    names: tuple[str, ...]
    """Names by which clients may request the model; the first one is listed."""
    tokenizer: Any
    tokenizer_id: str
    """Name or folder that clients load its tokenizer from."""
    eos_ids: tuple[int, ...]


class TinkerService:
    """The clients of one policy.

    Args:
        policy: samples and learns; closed with the service.
        model: names and tokenizer of the model.
        checkpoints: folder of saved states.
        settings: limits of clients.
        learner: memory bounds of a learning pass.
    """

    def __init__(
        self,
        policy: Policy,
        model: TinkerModel,
        checkpoints: CheckpointFolder,
        settings: ClientSettings,
        learner: LearnerSettings,
    ) -> None:
        self.model = model
        self.settings = settings
        self.checkpoints = checkpoints
        self.sessions = TinkerSessions(settings.max_clients, settings.session_seconds)
        self.promises = Promises(settings.max_open_requests, settings.max_open_mib << 20)
        self.context_length: int = policy.model.context_length
        self._policy = policy
        self._snapshots = Snapshots(policy, checkpoints.snapshots, settings.max_snapshots)
        self.trainings = ClientTrainings(
            policy,
            self.sessions,
            self.promises,
            checkpoints,
            self._snapshots,
            self.check_base,
            self._make_room,
            settings,
            learner,
        )
        slots = SamplerSlots(policy, settings.sampler_slots, settings.adapter_alpha)
        scorer = PromptScorer(
            policy, max_tokens=learner.max_batch_tokens or learning_chunk(policy.model), head_rows=learner.head_rows
        )
        self._sampler = ClientSampler(policy, slots, scorer, model.tokenizer, model.eos_ids)
        self._samples = 0

    async def sweep(self) -> None:
        """End sessions whose clients are gone, from time to time, until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            await self._end_silent(self.settings.session_seconds)
            await asyncio.to_thread(self.checkpoints.sweep)

    async def begin_session(self, body: SessionBody, owner: str) -> TinkerSession:
        """Return a new session of an owner.

        Raises:
            OverloadedError: there are as many as there may be.
        """
        if self.sessions.full:
            await self._make_room()
        return self.sessions.begin(body.user_metadata, body.display_name, owner)

    async def end_session(self, session_id: str) -> None:
        """Drop what a client has begun; what it saved stays."""
        session = self.sessions.end(session_id)
        if session is None:
            return
        for model in session.models.values():
            model.turns.close()
        self.promises.drop(session_id)
        for model in session.models.values():
            await self.trainings.end(model)
        await self._snapshots.end(session_id)

    async def _make_room(self) -> None:
        """End sessions without a recent heartbeat, to make room for another client."""
        await self._end_silent(min(_MISSED_SECONDS, self.settings.session_seconds))

    async def _end_silent(self, seconds: float) -> None:
        for session_id in self.sessions.silent(seconds):
            logger.warning("session %s has sent nothing for %g seconds, and is ended", session_id, seconds)
            await self.end_session(session_id)

    def check_base(self, name: str | None) -> str:
        """Return the name of the model.

        Raises:
            RefusedError: the client requested another model.
        """
        if name is not None and name.split(":")[0] not in self.model.names:
            raise RefusedError(f"the model {name!r} is not served here: there is {self.model.names[0]!r}")
        return name or self.model.names[0]

    def begin_sampling(self, body: SamplingSessionBody, owner: str) -> SamplingSession:
        """Return a session that samples with saved weights, or with the bare model.

        Raises:
            RefusedError: there are no such weights, or no such model.
        """
        session = self.sessions.hear(body.session_id, owner)
        weights = base = None
        if body.model_path is not None:
            checkpoint = self.checkpoints.get(body.model_path, owner)
            base = checkpoint.run.base_model
            weights = SavedWeights(checkpoint.folder, checkpoint.run.shape, f"{checkpoint.path}@{checkpoint.created}")
        name = self.check_base(body.base_model or base)
        sampler_id = f"{session.session_id}:sample:{body.sampling_session_seq_id}"
        return session.add_sampler(SamplingSession(sampler_id, name, body.model_path, weights))

    def sample(self, request: SampleRequest, owner: str) -> tuple[Promise, list[str]]:
        """Promise continuations of a prompt; return the ids of the sequences too."""
        body = request.body
        if body.sampling_session_id is None:
            raise RefusedError("asample needs a sampling_session_id: begin one by create_sampling_session")
        session, sampler = self.sessions.sampler(body.sampling_session_id, owner)
        self._samples += 1
        number = f"own{self._samples}" if body.seq_id is None else str(body.seq_id)
        request_id = f"{sampler.session_id}:{number}"
        ids = [f"{request_id}:{each}" for each in range(body.num_samples)]
        known = self.promises.find(request_id)
        if known is not None:
            return known, ids
        promise = self.promises.open(request_id, session.session_id, owner, request.size)

        async def work() -> SampleAnswer:
            prompt = sound(request.prompt)
            weights = sampler.current
            if weights is not None:
                self._snapshots.use(weights)
            return await self._sampler.sample(body, prompt, weights)

        promise.work = asyncio.create_task(promise.settle(work))
        return promise, ids

    def close(self) -> None:
        """Close the policy, and remove the snapshots."""
        self._policy.close()
        self._snapshots.close()
