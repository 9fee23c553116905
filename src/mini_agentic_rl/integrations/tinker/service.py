"""The work behind the routes, without HTTP: the clients' sessions, trainings and samplings.

A request that takes long is answered at once with a promise. Work on a model is queued behind the earlier requests of
the same client and runs on the torch thread, which all clients share. Used from one event loop, but for `close`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ...http import OverloadedError
from ...policy import LearnerSettings, Policy, learning_chunk
from .checkpoints import CheckpointFolder, ClientRun, Kind, SavedCheckpoint
from .losses import loss_batch
from .promises import NumberedTurns, Promise, Promises
from .protobuf import LossAnswer, SampleAnswer
from .requests import (
    AdamBody,
    CreateModelBody,
    LoadWeightsBody,
    LossRequest,
    OptimizerBody,
    OptimStepBody,
    SampleRequest,
    SamplingSessionBody,
    SaveBody,
)
from .sampling import ClientSampler, PromptScorer
from .sessions import ClientModel, SamplingSession, Snapshots, TinkerSession, TinkerSessions
from .settings import ClientSettings, RefusedError
from .training import AdapterShape, SamplerSlots, SavedWeights, TrainedAdapter, check_step

logger = logging.getLogger(__name__)

Work = Callable[[], Awaitable[Any]]

_MOST_MODELS: Final = 4096
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
        self.sessions = TinkerSessions(settings.max_clients)
        self.promises = Promises(settings.max_open_requests, settings.max_open_mib << 20)
        self.context_length: int = policy.model.context_length
        self._policy = policy
        self._snapshots = Snapshots(policy, checkpoints.snapshots, settings.max_snapshots)
        # The optimizer's state is saved and loaded, which the 8-bit optimizer does not support everywhere.
        self._learner = learner.model_copy(update={"optimizer": "adamw"})
        self.adapter_count = 0
        """Adapters in training."""
        self._numbers = 0
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

    async def begin_session(self, owner: str) -> TinkerSession:
        """Return a new session of an owner."""
        if self.sessions.full:
            await self._end_silent(_MISSED_SECONDS)
        return self.sessions.begin(owner)

    async def end_session(self, session_id: str) -> None:
        """Drop what a client has begun; what it saved stays."""
        session = self.sessions.end(session_id)
        if session is None:
            return
        for model in session.models.values():
            model.turns.close()
        self.promises.drop(session_id)
        for model in session.models.values():
            adapter, model.adapter = model.adapter, None
            if adapter is not None:
                self.adapter_count -= 1
                await self._policy.run_async(adapter.remove)
        await self._snapshots.end(session_id)

    async def _end_silent(self, seconds: float) -> None:
        """End sessions without a request for that long, or for `session_seconds` if these are fewer."""
        seconds = min(seconds, self.settings.session_seconds)
        for session_id in self.sessions.silent(seconds):
            logger.warning("session %s has sent nothing for %g seconds, and is ended", session_id, seconds)
            await self.end_session(session_id)

    def check_base(self, name: str | None) -> str:
        """Return the name of the model."""
        if name is not None and name.split(":")[0] not in self.model.names:
            raise RefusedError(f"the model {name!r} is not served here: there is {self.model.names[0]!r}")
        return name or self.model.names[0]

    def _check_optimizer(self, optimizer: OptimizerBody | None) -> None:
        if optimizer is not None and optimizer.type != "adamw":
            raise RefusedError(f"the optimizer {optimizer.type!r} is not served here: there is 'adamw'")

    def create_model(self, body: CreateModelBody, owner: str) -> Promise:
        """Create an adapter to train."""
        session = self.sessions.hear(body.session_id, owner)
        lora, model_id = body.lora_config, f"{body.session_id}:train:{body.model_seq_id}"

        async def work() -> dict[str, Any]:
            self._check_optimizer(body.optimizer_config)
            if not (lora.train_attn or lora.train_mlp):
                raise RefusedError(
                    "adapters train attention, the MLP or both here: the output head alone cannot be trained"
                )
            base = self.check_base(body.base_model)
            shape = AdapterShape(lora.rank, lora.train_attn, lora.train_mlp)
            await self._make(session, model_id, base, shape, lora.seed, body.user_metadata)
            return {"model_id": model_id, "type": "create_model"}

        return self._first(session, model_id, body.base_model, work)

    def load_weights(self, body: LoadWeightsBody, owner: str) -> Promise:
        """Load saved weights into an existing model or a new one."""
        if body.model_id is not None:
            _, model = self.sessions.of_model(body.model_id, owner)

            async def work() -> dict[str, Any]:
                checkpoint = self.checkpoints.get(body.path, owner)
                adapter = model.made()
                if checkpoint.run.shape != adapter.shape:
                    raise RefusedError(f"{body.path} has an adapter of another shape: {checkpoint.run.shape}")
                await self._load(adapter, checkpoint, optimizer=body.optimizer)
                return {"path": body.path, "model_id": model.model_id, "type": "load_weights"}

            return self._numbered(model, owner, body.seq_id, work)
        if body.session_id is None or body.model_seq_id is None:
            raise RefusedError("load_weights needs a model_id, or a session_id and a model_seq_id")
        session = self.sessions.hear(body.session_id, owner)
        model_id = f"{body.session_id}:train:{body.model_seq_id}"

        async def begin() -> dict[str, Any]:
            checkpoint = self.checkpoints.get(body.path, owner)
            self._check_optimizer(body.optimizer_config)
            base = self.check_base(body.base_model or checkpoint.run.base_model)
            adapter = await self._make(session, model_id, base, checkpoint.run.shape, None, body.user_metadata)
            await self._load(adapter, checkpoint, optimizer=body.optimizer)
            return {"path": body.path, "model_id": model_id, "type": "load_weights"}

        return self._first(session, model_id, body.base_model or "", begin)

    def forward_backward(self, request: LossRequest, owner: str) -> Promise:
        """Compute the loss of a batch and, unless it is `forward_only`, add its gradient to the client's adapter."""
        _, model = self.sessions.of_model(request.model_id, owner)

        async def work() -> LossAnswer:
            adapter = model.made()
            if request.error is not None:
                raise request.error
            batch = await asyncio.to_thread(
                loss_batch,
                request.loss,
                request.config,
                request.data,
                vocabulary=self._policy.model.vocab_size,
                context_length=self._policy.model.context_length,
            )
            return await self._policy.learn_async(
                lambda: adapter.forward_backward(batch, gradient=not request.forward_only), self.settings.sampler_share
            )

        return self._numbered(model, owner, request.seq_id, work, request.size)

    def optim_step(self, body: OptimStepBody, owner: str) -> Promise:
        """Take an optimizer step of the client's adapter."""
        _, model = self.sessions.of_model(body.model_id, owner)

        async def work() -> dict[str, Any]:
            self._check_optimizer(body.optimizer_params)
            step = body.adam_params or AdamBody()
            check_step(step)
            adapter = model.made()
            return {"metrics": await self._policy.run_async(lambda: adapter.optim_step(step)), "type": "optim_step"}

        return self._numbered(model, owner, body.seq_id, work)

    def save_state(self, body: SaveBody, owner: str) -> Promise:
        """Save the weights and the optimizer's state under a name."""
        _, model = self.sessions.of_model(body.model_id, owner)

        async def work() -> dict[str, Any]:
            return {"path": await self._save(model, body, "weights"), "type": "save_weights"}

        return self._numbered(model, owner, body.seq_id, work)

    def save_for_sampler(self, body: SaveBody, owner: str) -> Promise:
        """Save weights to sample with: under a name, or as the snapshot of a new sampling session."""
        session, model = self.sessions.of_model(body.model_id, owner)

        async def work() -> dict[str, Any]:
            if body.path is not None:
                return {"path": await self._save(model, body, "sampler_weights"), "type": "save_weights_for_sampler"}
            weights = await self._snapshots.take(model)
            number = len(session.samplers) if body.sampling_session_seq_id is None else body.sampling_session_seq_id
            sampler = SamplingSession(f"{session.session_id}:sample:{number}", model.base_model, weights=weights)
            session.add_sampler(sampler)
            return {"sampling_session_id": sampler.session_id, "type": "save_weights_for_sampler"}

        return self._numbered(model, owner, body.seq_id, work)

    def begin_sampling(self, body: SamplingSessionBody, owner: str) -> SamplingSession:
        """Return a session that samples with saved weights, or with the bare model."""
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
        number = f"unnumbered{self._samples}" if body.seq_id is None else str(body.seq_id)
        request_id = f"{sampler.session_id}:{number}"
        ids = [f"{request_id}:{each}" for each in range(body.num_samples)]
        known = self.promises.find(request_id)
        if known is not None:
            return known, ids
        promise = self.promises.open(request_id, session.session_id, owner, request.size)

        async def work() -> SampleAnswer:
            if request.error is not None:
                raise request.error
            if sampler.weights is not None:
                self._snapshots.use(sampler.weights)
            return await self._sampler.sample(request, sampler.weights)

        promise.work = asyncio.create_task(promise.settle(work))
        return promise, ids

    def close(self) -> None:
        """Close the policy, and remove the snapshots."""
        self._policy.close()
        self._snapshots.close()

    def _first(self, session: TinkerSession, model_id: str, base_model: str, work: Work) -> Promise:
        """Queue the request that creates a model; a repeated request gets the same promise."""
        known = self.promises.find(f"{model_id}:0")
        if known is not None:
            return known
        if model_id in session.models:
            raise RefusedError(f"the model {model_id!r} was begun already")
        if len(session.models) >= _MOST_MODELS:
            raise OverloadedError(
                f"this session has begun {_MOST_MODELS} models, which is the most: begin a new session"
            )
        model = ClientModel(model_id, base_model, NumberedTurns(0, self.settings.gap_seconds))
        promise = self.promises.open(f"{model_id}:0", session.session_id, session.owner)
        session.models[model_id] = model
        model.turns.put(0, promise, work)
        return promise

    def _numbered(
        self,
        model: ClientModel,
        owner: str,
        seq_id: int | None,
        work: Work,
        size: int = 0,
    ) -> Promise:
        """Queue a request of a model; a repeated request gets the same promise."""
        known = None if seq_id is None else self.promises.find(f"{model.model_id}:{seq_id}")
        if known is not None:
            return known
        number = model.turns.number(seq_id)
        promise = self.promises.open(f"{model.model_id}:{number}", model.model_id.split(":")[0], owner, size)
        model.turns.put(number, promise, work)
        return promise

    async def _make(
        self,
        session: TinkerSession,
        model_id: str,
        base_model: str,
        shape: AdapterShape,
        seed: int | None,
        user_metadata: Mapping[str, Any] | None,
    ) -> TrainedAdapter:
        settings = self.settings
        if self.adapter_count >= settings.max_trained_adapters:
            await self._end_silent(_MISSED_SECONDS)
        if self.adapter_count >= settings.max_trained_adapters:
            raise RefusedError(
                f"{settings.max_trained_adapters} adapters are in training, which is the most (max_trained_adapters): "
                "close a client, or wait until one that is gone has been given up"
            )
        if shape.rank > settings.max_rank:
            raise RefusedError(f"rank {shape.rank} is above {settings.max_rank}, the largest one here (max_rank)")
        self.adapter_count += 1
        self._numbers += 1
        name = f"client{self._numbers}"
        making = asyncio.ensure_future(
            self._policy.run_async(
                lambda: TrainedAdapter(
                    self._policy, name, shape, alpha=settings.adapter_alpha, settings=self._learner, seed=seed
                )
            )
        )
        run = ClientRun(model_id, base_model, shape, time.time(), user_metadata, session.owner)
        try:
            adapter = await asyncio.shield(making)
            await asyncio.to_thread(self.checkpoints.begin, run)
        except BaseException:
            # The client disconnected or the disk is full: remove the adapter, which no session refers to.
            making.add_done_callback(self._unmake)
            raise
        model = session.models[model_id]
        model.adapter, model.base_model = adapter, base_model
        return adapter

    def _unmake(self, made: asyncio.Future[TrainedAdapter]) -> None:
        self.adapter_count -= 1
        if not made.cancelled() and made.exception() is None:
            self._policy.submit_turn(made.result().remove, learning=False)

    async def _load(self, adapter: TrainedAdapter, checkpoint: SavedCheckpoint, *, optimizer: bool) -> None:
        load = partial(adapter.load, optimizer=optimizer)
        await self._policy.run_async(lambda: self.checkpoints.read(checkpoint, load))

    async def _save(self, model: ClientModel, body: SaveBody, kind: Kind) -> str:
        adapter = model.made()
        target = self.checkpoints.target(model.model_id, kind, body.path or "", overwrite=body.overwrite)

        def save() -> SavedCheckpoint:
            return self.checkpoints.write(
                model.model_id,
                kind,
                target,
                lambda folder: adapter.save(folder, optimizer=kind == "weights"),
                body.ttl_seconds,
                body.user_metadata,
            )

        return (await self._policy.run_async(save)).path
