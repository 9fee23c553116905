"""The routes of the Tinker API that begin, train, sample and fetch results."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ...http import (
    Admission,
    AdmittedEndpoint,
    BadRequestError,
    Body,
    Endpoint,
    HttpError,
    RequestMetrics,
    UnsupportedEncodingError,
    checked,
    encode_in_steps,
    json_response,
    off_loop,
    read_body,
    read_json,
)
from ...policy import LearnerSettings, Policy, learning_chunk
from .checkpoints import CheckpointFolder
from .promises import Promise, Promises
from .sampling import ClientSampler, PromptScorer
from .sessions import SamplingSession, Snapshots, TinkerSession, TinkerSessions, UnknownClientError, owner_of
from .settings import ClientSettings, NoWeightsError, RefusedError
from .training import SamplerSlots, SavedWeights
from .trainings import ClientTrainings
from .wire.data import LossRequest, SampleRequest, loss_request_of_json, loss_request_of_proto, sample_request, sound
from .wire.messages import (
    AnythingBody,
    CreateModelBody,
    HeartbeatBody,
    JoinBody,
    LoadWeightsBody,
    ModelBody,
    OptimStepBody,
    RetrieveBody,
    SamplingSessionBody,
    SaveBody,
    SessionBody,
)
from .wire.results import LossAnswer, SampleAnswer

logger = logging.getLogger(__name__)


# The work behind the server of the Tinker API: its clients' sessions, trainings and samplings. No HTTP.
#
# A request that takes long is answered at once with a promise. Used from one event loop, but for `close`.


_SWEEP_SECONDS: Final = 5.0
_MISSED_SECONDS: Final = 60.0
"""A client that is there says so every 10 seconds: one that has missed this many may have its place taken."""


@dataclass(frozen=True)
class TinkerModel:
    """The model that is served."""

    names: tuple[str, ...]
    """Names that clients may call it, the first of which they are told."""
    tokenizer: Any
    tokenizer_id: str
    """Name or folder that clients load its tokenizer from."""
    eos_ids: tuple[int, ...]


class TinkerService:
    """The clients of one policy.

    Args:
        policy: samples and learns; ends with the service.
        model: what it is called.
        checkpoints: where states are saved.
        settings: bounds of what clients hold.
        learner: bounds the memory of a pass.
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
        """End sessions whose clients seem to be gone, because another one needs the place."""
        await self._end_silent(min(_MISSED_SECONDS, self.settings.session_seconds))

    async def _end_silent(self, seconds: float) -> None:
        for session_id in self.sessions.silent(seconds):
            logger.warning("session %s has not been heard of for %g seconds, and is ended", session_id, seconds)
            await self.end_session(session_id)

    def check_base(self, name: str | None) -> str:
        """Return the name of the model.

        Raises:
            RefusedError: another one was asked for.
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
        """End the policy, and remove what was only kept to sample with."""
        self._policy.close()
        self._snapshots.close()


PREFIX: Final = "/api/v1"
_PROTOBUF: Final = "application/x-protobuf"

_BODY_BYTES: Final = 64 * 1024
"""Most bytes of a request that brings no data: metadata that it has are kept."""
_JSON_BYTES: Final = 16 * 1024 * 1024
"""Most bytes of data in JSON, as of every server here; in protobuf, which is read by far quicker, the limits say."""
_REPORT_BYTES: Final = 1024 * 1024
"""Most bytes of what a client reports of itself, which is thrown away."""
_FEW: Final = 4096
"""Numbers of a result that is written in one go."""

BodyT = TypeVar("BodyT", bound=Body)
T = TypeVar("T")


def refused(error: HttpError) -> Response:
    """Return the response that tells of an error, as Tinker's clients show it."""
    return json_response({"detail": error.message}, error.status, error.headers)


@dataclass(frozen=True)
class TinkerRoutes:
    """Makes routes whose requests come in by the admission, and are counted."""

    service: TinkerService
    admission: Admission
    metrics: RequestMetrics

    def route(self, method: str, path: str, endpoint: Endpoint) -> Route:
        """Return a route under `/api/v1`."""

        async def answer(request: Request) -> Response:
            try:
                return await endpoint(request)
            except NoWeightsError as error:
                raise UnknownClientError(str(error)) from error
            except RefusedError as error:  # of what is answered at once
                raise BadRequestError(str(error)) from error

        name = path.strip("/").split("/")[0]
        admitted = AdmittedEndpoint(name, answer, self.admission, self.metrics, refused)
        return Route(PREFIX + path, admitted, methods=[method])

    def owner(self, request: Request) -> str:
        """Return whose request it is."""
        return owner_of(self.admission.keys.check(request.headers))

    async def read(self, request: Request, read: Callable[[dict[str, Any]], T], most_bytes: int = _BODY_BYTES) -> T:
        """Return what `read` makes of the JSON object in the body."""
        limits = self.admission.limits
        most = min(limits.max_body_bytes, most_bytes)
        return await read_json(request, most, read, within_seconds=limits.max_body_seconds)

    def post(
        self,
        path: str,
        kind: type[BodyT],
        answer: Callable[[BodyT, str], Awaitable[dict[str, Any]]],
        most_bytes: int = _BODY_BYTES,
    ) -> Route:
        """Return a route that takes a JSON object; `answer` is given it and its owner."""

        async def endpoint(request: Request) -> Response:
            body = await self.read(request, lambda fields: checked(kind, fields), most_bytes)
            return json_response(await answer(body, self.owner(request)))

        return self.route("POST", path, endpoint)

    def get(self, path: str, answer: Callable[[Request, str], dict[str, Any]]) -> Route:
        """Return a route that takes nothing but its path; `answer` is given the request and its owner, in a thread."""

        async def endpoint(request: Request) -> Response:
            owner = self.owner(request)
            return Response(
                await off_loop(1 << 17, lambda: encode_in_steps(answer(request, owner))), media_type="application/json"
            )

        return self.route("GET", path, endpoint)


def work_routes(routes: TinkerRoutes) -> list[Route]:
    """Return the routes of sessions, training, sampling and results."""
    service = routes.service

    async def client_config(body: AnythingBody, owner: str) -> dict[str, Any]:
        # A client that waits for fewer results than it may open is never told to come again.
        most = max(1, min(400, service.settings.max_open_requests // 2))
        return {"sample_max_concurrent_requests": most, "sample_join_sampling_session": True}

    async def dynamic_config(body: AnythingBody, owner: str) -> dict[str, Any]:
        return {"sample_cancel_enabled": True}

    async def create_session(body: SessionBody, owner: str) -> dict[str, Any]:
        session = await service.begin_session(body, owner)
        return {"type": "create_session", "session_id": session.session_id}

    async def heartbeat(body: HeartbeatBody, owner: str) -> dict[str, Any]:
        service.sessions.hear(body.session_id, owner)
        return {"type": "session_heartbeat"}

    async def create_model(body: CreateModelBody, owner: str) -> dict[str, Any]:
        return _promised(*service.trainings.create_model(body, owner))

    async def load_weights(body: LoadWeightsBody, owner: str) -> dict[str, Any]:
        return _promised(*service.trainings.load_weights(body, owner))

    async def optim_step(body: OptimStepBody, owner: str) -> dict[str, Any]:
        return _promised(service.trainings.optim_step(body, owner), body.model_id)

    async def save_weights(body: SaveBody, owner: str) -> dict[str, Any]:
        return _promised(service.trainings.save_state(body, owner), body.model_id)

    async def save_for_sampler(body: SaveBody, owner: str) -> dict[str, Any]:
        return _promised(service.trainings.save_for_sampler(body, owner), body.model_id)

    async def create_sampling_session(body: SamplingSessionBody, owner: str) -> dict[str, Any]:
        sampler = service.begin_sampling(body, owner)
        return {"type": "create_sampling_session", "sampling_session_id": sampler.session_id}

    async def join_sampling_session(body: JoinBody, owner: str) -> dict[str, Any]:
        _, sampler = service.sessions.sampler(body.sampling_session_id, owner)
        sampler.joined += 1
        return {"type": "join_sampling_session", "client_counter": sampler.joined}

    async def asample(request: Request) -> Response:
        found = await routes.read(request, sample_request, _JSON_BYTES)
        promise, ids = service.sample(found, routes.owner(request))
        return json_response({"request_id": promise.request_id, "sample_sequence_ids": ids})

    async def cancel_future(body: RetrieveBody, owner: str) -> dict[str, Any]:
        promise = service.promises.find(body.request_id)
        if promise is not None and promise.owner == owner:
            promise.cancel()
            service.promises.fetched(promise)
        return {}

    async def get_info(body: ModelBody, owner: str) -> dict[str, Any]:
        _, model = service.sessions.of_model(body.model_id, owner)
        if model.adapter is None:
            raise UnknownClientError(f"the model {body.model_id!r} is not made yet")
        about = {"model_name": model.base_model, "tokenizer_id": service.model.tokenizer_id}
        return {
            "type": "get_info",
            "model_id": model.model_id,
            "model_data": about,
            "model_name": model.base_model,
            "is_lora": True,
            "lora_rank": model.adapter.shape.rank,
        }

    async def telemetry(body: AnythingBody, owner: str) -> dict[str, Any]:
        return {"status": "accepted"}

    async def loss(request: Request, *, forward_only: bool) -> Response:
        found = await _loss_request(request, routes, forward_only)
        promise = service.trainings.forward_backward(found, routes.owner(request))
        return json_response(_promised(promise, found.model_id))

    async def forward_backward(request: Request) -> Response:
        return await loss(request, forward_only=False)

    async def forward(request: Request) -> Response:
        return await loss(request, forward_only=True)

    async def retrieve(request: Request) -> Response:
        body = await routes.read(request, lambda fields: checked(RetrieveBody, fields))
        promise = service.promises.get(body.request_id, routes.owner(request))
        with routes.admission.resting(request.headers):
            done = await promise.wait(service.settings.retrieve_seconds)
        if not done:
            again = {"type": "try_again", "request_id": promise.request_id, "queue_state": "active"}
            return json_response(again, 408)
        return await _result(promise, _PROTOBUF in request.headers.get("accept", ""), service)

    return [
        routes.post("/client/config", AnythingBody, client_config),
        routes.post("/client/dynamic_config", AnythingBody, dynamic_config),
        routes.post("/create_session", SessionBody, create_session),
        routes.post("/session_heartbeat", HeartbeatBody, heartbeat),
        routes.post("/create_model", CreateModelBody, create_model),
        routes.post("/load_weights", LoadWeightsBody, load_weights),
        routes.post("/get_info", ModelBody, get_info),
        routes.route("POST", "/forward_backward", forward_backward),
        routes.route("POST", "/forward", forward),
        routes.post("/optim_step", OptimStepBody, optim_step),
        routes.post("/save_weights", SaveBody, save_weights),
        routes.post("/save_weights_for_sampler", SaveBody, save_for_sampler),
        routes.post("/create_sampling_session", SamplingSessionBody, create_sampling_session),
        routes.post("/join_sampling_session", JoinBody, join_sampling_session),
        routes.route("POST", "/asample", asample),
        routes.post("/cancel_future", RetrieveBody, cancel_future),
        routes.route("POST", "/retrieve_future", retrieve),
        routes.post("/telemetry", AnythingBody, telemetry, _REPORT_BYTES),
    ]


def _promised(promise: Promise, model_id: str) -> dict[str, Any]:
    return {"request_id": promise.request_id, "model_id": model_id}


async def _loss_request(request: Request, routes: TinkerRoutes, forward_only: bool) -> LossRequest:
    limits = routes.admission.limits
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _PROTOBUF:
        return await routes.read(
            request, lambda fields: loss_request_of_json(fields, forward_only=forward_only), _JSON_BYTES
        )
    if request.headers.get("content-encoding", "identity") != "identity":
        raise UnsupportedEncodingError("send protobuf as it is, not compressed")
    body = await read_body(request, limits.max_body_bytes, within_seconds=limits.max_body_seconds)
    return await off_loop(len(body), lambda: loss_request_of_proto(body))


async def _result(promise: Promise, in_protobuf: bool, service: TinkerService) -> Response:
    """Return the response that tells of a result or a failure; a client hears of either once."""
    result, response = promise.result, Response()
    if promise.failure is not None:
        response = json_response({"error": str(promise.failure), "category": promise.failure.category})
    elif not isinstance(result, LossAnswer | SampleAnswer):
        response = json_response(result)
    elif in_protobuf:
        response = Response(await off_loop(1 << 17, result.to_proto), media_type=_PROTOBUF)
    elif result.count <= _FEW:
        response = Response(b"".join(result.json_parts()), media_type="application/json")
    else:  # written in a thread, as fast as it is read
        response = StreamingResponse(_gathered(result.json_parts()), media_type="application/json")
    service.promises.fetched(promise)
    return response


def _gathered(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Yield parts of some size."""
    waiting: list[bytes] = []
    size = 0
    for part in parts:
        waiting.append(part)
        size += len(part)
        if size >= _BODY_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    yield b"".join(waiting)
