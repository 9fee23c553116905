"""Requests that create, train, save and load adapters.

Each returns a promise; its work is queued behind the earlier requests of the same client, and runs on the torch thread,
which all clients share. Used from one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from ...http import OverloadedError
from ...policy import LearnerSettings, Policy
from .checkpoints import CheckpointFolder, ClientRun, Kind, SavedCheckpoint
from .losses import loss_batch
from .promises import NumberedTurns, Promise, Promises
from .sessions import ClientModel, SamplingSession, Snapshots, TinkerSession, TinkerSessions
from .settings import ClientSettings, RefusedError
from .training import AdamStep, AdapterShape, TrainedAdapter
from .wire.data import LossRequest, sound
from .wire.messages import CreateModelBody, LoadWeightsBody, LoraBody, OptimStepBody, SaveBody
from .wire.results import LossAnswer


class ClientTrainings:
    """The adapters that clients train.

    Args:
        policy: holds the adapters.
        check_base: returns the name of a requested base model, or refuses it.
        make_room: ends sessions without a recent heartbeat.
        learner: memory bounds of a learning pass.
    """

    def __init__(
        self,
        policy: Policy,
        sessions: TinkerSessions,
        promises: Promises,
        checkpoints: CheckpointFolder,
        snapshots: Snapshots,
        check_base: Callable[[str | None], str],
        make_room: Callable[[], Awaitable[None]],
        settings: ClientSettings,
        learner: LearnerSettings,
    ) -> None:
        self._policy = policy
        self._sessions = sessions
        self._promises = promises
        self._checkpoints = checkpoints
        self._snapshots = snapshots
        self._check_base = check_base
        self._make_room = make_room
        self._settings = settings
        # The optimizer's state is saved and loaded, which the 8-bit optimizer does not support everywhere.
        self._learner = learner.model_copy(update={"optimizer": "adamw"})
        self._numbers = 0
        self.count = 0
        """Adapters in training."""

    def create_model(self, body: CreateModelBody, owner: str) -> tuple[Promise, str]:
        """Create an adapter to train; return the promise and the model id."""
        session = self._sessions.hear(body.session_id, owner)
        lora, model_id = body.lora_config, f"{body.session_id}:train:{body.model_seq_id}"

        async def work() -> dict[str, Any]:
            self._check_optimizer(body.optimizer_config.type)
            base = self._check_base(body.base_model)
            await self._make(session, model_id, base, self._shape(lora), lora.seed, body.user_metadata)
            return {"model_id": model_id, "type": "create_model"}

        return self._first(session, model_id, body.base_model, work), model_id

    def load_weights(self, body: LoadWeightsBody, owner: str) -> tuple[Promise, str]:
        """Load saved weights into an existing model or a new one; return the promise and the model id."""
        if body.model_id is not None:
            _, model = self._sessions.of_model(body.model_id, owner)

            async def work() -> dict[str, Any]:
                checkpoint = self._checkpoints.get(body.path, owner)
                adapter = model.made()
                if checkpoint.run.shape != adapter.shape:
                    raise RefusedError(f"{body.path} has an adapter of another shape: {checkpoint.run.shape}")
                await self._load(adapter, checkpoint, optimizer=body.optimizer)
                return self._loaded(body.path, model.model_id)

            return self._numbered(model, owner, body.seq_id, work), model.model_id
        if body.session_id is None or body.model_seq_id is None:
            raise RefusedError("load_weights needs a model_id, or a session_id and a model_seq_id")
        session = self._sessions.hear(body.session_id, owner)
        model_id = f"{body.session_id}:train:{body.model_seq_id}"

        async def begin() -> dict[str, Any]:
            checkpoint = self._checkpoints.get(body.path, owner)
            self._check_optimizer("adamw" if body.optimizer_config is None else body.optimizer_config.type)
            base = self._check_base(body.base_model or checkpoint.run.base_model)
            adapter = await self._make(session, model_id, base, checkpoint.run.shape, None, body.user_metadata)
            await self._load(adapter, checkpoint, optimizer=body.optimizer)
            return self._loaded(body.path, model_id)

        return self._first(session, model_id, body.base_model or "", begin), model_id

    def forward_backward(self, request: LossRequest, owner: str) -> Promise:
        """Compute the loss of a batch and, unless it is `forward_only`, add its gradient to the client's adapter."""
        _, model = self._sessions.of_model(request.model_id, owner)

        async def work() -> LossAnswer:
            adapter, size = model.made(), self._policy.model.vocab_size
            batch = await asyncio.to_thread(
                lambda: loss_batch(
                    request.loss,
                    request.config,
                    sound(request.data),
                    vocabulary=size,
                    context_length=self._policy.model.context_length,
                )
            )
            gradient = not request.forward_only
            found = await self._policy.learn_async(
                lambda: adapter.forward_backward(batch, gradient=gradient), self._settings.sampler_share
            )
            return LossAnswer(found.logprobs, {"loss:sum": found.loss})

        return self._numbered(model, owner, request.seq_id, work, request.size)

    def optim_step(self, body: OptimStepBody, owner: str) -> Promise:
        """Take an optimizer step of the client's adapter."""
        _, model = self._sessions.of_model(body.model_id, owner)

        async def work() -> dict[str, Any]:
            if body.optimizer_params is not None:
                self._check_optimizer(body.optimizer_params.type)
            step = AdamStep() if body.adam_params is None else AdamStep(**body.adam_params.model_dump())
            adapter = model.made()
            return {"metrics": await self._policy.run_async(lambda: adapter.optim_step(step)), "type": "optim_step"}

        return self._numbered(model, owner, body.seq_id, work)

    def save_state(self, body: SaveBody, owner: str) -> Promise:
        """Save the weights and the optimizer's state under a name."""
        _, model = self._sessions.of_model(body.model_id, owner)

        async def work() -> dict[str, Any]:
            return {"path": await self._save(model, body, "weights"), "type": "save_weights"}

        return self._numbered(model, owner, body.seq_id, work)

    def save_for_sampler(self, body: SaveBody, owner: str) -> Promise:
        """Save weights to sample with: under a name, or as the snapshot of a new sampling session."""
        session, model = self._sessions.of_model(body.model_id, owner)

        async def work() -> dict[str, Any]:
            if body.path is not None:
                return {"path": await self._save(model, body, "sampler_weights"), "type": "save_weights_for_sampler"}
            weights = await self._snapshots.take(model)
            number = len(session.samplers) if body.sampling_session_seq_id is None else body.sampling_session_seq_id
            sampler = SamplingSession(f"{session.session_id}:sample:{number}", model.base_model, weights=weights)
            if body.kind == "inflight":
                model.inflight, sampler.inflight_of = weights, model
            session.add_sampler(sampler)
            return {"sampling_session_id": sampler.session_id, "type": "save_weights_for_sampler"}

        return self._numbered(model, owner, body.seq_id, work)

    async def end(self, model: ClientModel) -> None:
        """Remove the adapter of a session that has ended."""
        adapter, model.adapter = model.adapter, None
        if adapter is not None:
            self.count -= 1
            await self._policy.run_async(adapter.remove)

    def _first(
        self, session: TinkerSession, model_id: str, base_model: str, work: Callable[[], Awaitable[Any]]
    ) -> Promise:
        """Queue the request that creates a model; a repeated request gets the same promise."""
        known = self._promises.find(f"{model_id}:0")
        if known is not None:
            return known
        if model_id in session.models:
            raise RefusedError(f"the model {model_id!r} was begun already")
        model = ClientModel(model_id, base_model, NumberedTurns(0, self._settings.gap_seconds))
        session.add_model(model)
        try:
            promise = self._promises.open(f"{model_id}:0", session.session_id, session.owner)
        except OverloadedError:
            del session.models[model_id]
            raise
        model.turns.put(0, promise, work)
        return promise

    def _numbered(
        self,
        model: ClientModel,
        owner: str,
        seq_id: int | None,
        work: Callable[[], Awaitable[Any]],
        size: int = 0,
    ) -> Promise:
        """Queue a request of a model; a repeated request gets the same promise."""
        known = None if seq_id is None else self._promises.find(f"{model.model_id}:{seq_id}")
        if known is not None:
            return known
        number = model.turns.number(seq_id)
        promise = self._promises.open(f"{model.model_id}:{number}", model.model_id.split(":")[0], owner, size)
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
        settings = self._settings
        if self.count >= settings.max_trained_adapters:
            await self._make_room()
        if self.count >= settings.max_trained_adapters:
            raise RefusedError(
                f"{settings.max_trained_adapters} adapters are in training, which is the most (max_trained_adapters): "
                "close a client, or wait until one that is gone has been given up"
            )
        if shape.rank > settings.max_rank:
            raise RefusedError(f"rank {shape.rank} is above {settings.max_rank}, the largest one here (max_rank)")
        self.count += 1
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
            await asyncio.to_thread(self._checkpoints.begin, run)
        except BaseException:
            # The client disconnected or the disk is full: remove the adapter, which no session refers to.
            making.add_done_callback(self._unmake)
            raise
        model = session.models[model_id]
        model.adapter, model.base_model = adapter, base_model
        return adapter

    def _unmake(self, made: asyncio.Future[TrainedAdapter]) -> None:
        self.count -= 1
        if not made.cancelled() and made.exception() is None:
            self._policy.submit_turn(made.result().remove, learning=False)

    async def _load(self, adapter: TrainedAdapter, checkpoint: SavedCheckpoint, *, optimizer: bool) -> None:
        load = partial(adapter.load, optimizer=optimizer)
        await self._policy.run_async(lambda: self._checkpoints.read(checkpoint, load))

    async def _save(self, model: ClientModel, body: SaveBody, kind: Kind) -> str:
        adapter = model.made()
        target = self._checkpoints.target(model.model_id, kind, body.path or "", overwrite=body.overwrite)

        def save() -> SavedCheckpoint:
            return self._checkpoints.write(
                model.model_id,
                kind,
                target,
                lambda folder: adapter.save(folder, optimizer=kind == "weights"),
                body.ttl_seconds,
                body.user_metadata,
            )

        return (await self._policy.run_async(save)).path

    def _shape(self, lora: LoraBody) -> AdapterShape:
        if not (lora.train_attn or lora.train_mlp):
            raise RefusedError(
                "adapters train attention, the MLP or both here: the output head alone cannot be trained"
            )
        return AdapterShape(lora.rank, lora.train_attn, lora.train_mlp)

    def _check_optimizer(self, name: str) -> None:
        if name != "adamw":
            raise RefusedError(f"the optimizer {name!r} is not served here: there is 'adamw'")

    def _loaded(self, path: str, model_id: str) -> dict[str, Any]:
        return {"path": path, "model_id": model_id, "type": "load_weights"}
