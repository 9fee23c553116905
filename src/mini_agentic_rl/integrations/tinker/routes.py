"""The routes of the Tinker API: `work_routes` train, sample and fetch results, `record_routes` look things up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...http import (
    Admission,
    AdmittedEndpoint,
    BadRequestError,
    Body,
    HttpError,
    RequestMetrics,
    UnsupportedEncodingError,
    checked,
    json_response,
    off_loop,
    read_body,
    read_json,
)
from .checkpoints import SCHEME
from .promises import Promise
from .protobuf import LossAnswer, SampleAnswer
from .requests import (
    CreateModelBody,
    HeartbeatBody,
    JoinBody,
    LoadWeightsBody,
    ModelBody,
    OptimStepBody,
    PathBody,
    RetrieveBody,
    SamplingSessionBody,
    SaveBody,
    loss_request_of_proto,
    sample_request,
)
from .service import TinkerService
from .sessions import UnknownClientError, owner_of
from .settings import NoWeightsError, RefusedError

PREFIX: Final = "/api/v1"
_PROTOBUF: Final = "application/x-protobuf"

_BODY_BYTES: Final = 64 * 1024
"""Most bytes of a request without data; its metadata are kept."""
_JSON_BYTES: Final = 16 * 1024 * 1024
"""Most bytes of a prompt in JSON, as in every server here; `limits` bound protobuf, which is parsed much faster."""
_REPORT_BYTES: Final = 1024 * 1024
"""Most bytes of a client's telemetry, which is discarded."""

BodyT = TypeVar("BodyT", bound=Body)
T = TypeVar("T")
Answer = dict[str, Any] | Response


def refused(error: HttpError) -> Response:
    """Return the response for an error, in the form that Tinker's clients read."""
    return json_response({"detail": error.message}, error.status, error.headers)


@dataclass(frozen=True)
class TinkerRoutes:
    """Makes routes whose requests pass the admission and are counted."""

    service: TinkerService
    admission: Admission
    metrics: RequestMetrics

    def route(self, method: str, path: str, answer: Callable[[Request, str], Awaitable[Answer]]) -> Route:
        """Return a route under `/api/v1`; `answer` is called with the request and its owner, see `owner_of`."""

        async def endpoint(request: Request) -> Response:
            try:
                result = await answer(request, owner_of(self.admission.keys.check(request.headers)))
            except NoWeightsError as error:
                raise UnknownClientError(str(error)) from error
            except RefusedError as error:  # of what is answered at once
                raise BadRequestError(str(error)) from error
            return result if isinstance(result, Response) else json_response(result)

        name = path.strip("/").split("/")[0]
        admitted = AdmittedEndpoint(name, endpoint, self.admission, self.metrics, refused)
        return Route(PREFIX + path, admitted, methods=[method])

    async def read(self, request: Request, read: Callable[[dict[str, Any]], T], most_bytes: int = _BODY_BYTES) -> T:
        """Read the JSON object in the body by `read`, and return the result."""
        limits = self.admission.limits
        most = min(limits.max_body_bytes, most_bytes)
        return await read_json(request, most, read, within_seconds=limits.max_body_seconds)

    def post(self, path: str, kind: type[BodyT], answer: Callable[[BodyT, str], Awaitable[Answer]]) -> Route:
        """Return a route that takes a JSON object; `answer` is called with it and its owner."""

        async def read_and_answer(request: Request, owner: str) -> Answer:
            return await answer(await self.read(request, lambda fields: checked(kind, fields)), owner)

        return self.route("POST", path, read_and_answer)

    def fixed(self, path: str, answer: dict[str, Any], most_bytes: int = _BODY_BYTES) -> Route:
        """Return a route that takes a JSON object, ignores it and always gives the same answer."""

        async def ignore(request: Request, owner: str) -> Answer:
            await self.read(request, lambda fields: None, most_bytes)
            return answer

        return self.route("POST", path, ignore)

    def queue(self, path: str, kind: type[BodyT], work: Callable[[BodyT, str], Promise]) -> Route:
        """Return a route whose JSON object `work` queues; the answer is the id of the promised result."""

        async def answer(body: BodyT, owner: str) -> Answer:
            return _promised(work(body, owner))

        return self.post(path, kind, answer)


def work_routes(routes: TinkerRoutes) -> list[Route]:
    """Return the routes of sessions, training, sampling and results."""
    service = routes.service

    # A client that waits for fewer results than it may open never gets 429.
    most = max(1, min(400, service.settings.max_open_requests // 2))
    client_config = {"sample_max_concurrent_requests": most, "sample_join_sampling_session": True}

    async def create_session(body: Body, owner: str) -> dict[str, Any]:
        session = await service.begin_session(owner)
        return {"type": "create_session", "session_id": session.session_id}

    async def heartbeat(body: HeartbeatBody, owner: str) -> dict[str, Any]:
        service.sessions.hear(body.session_id, owner)
        return {"type": "session_heartbeat"}

    async def create_sampling_session(body: SamplingSessionBody, owner: str) -> dict[str, Any]:
        sampler = service.begin_sampling(body, owner)
        return {"type": "create_sampling_session", "sampling_session_id": sampler.session_id}

    async def join_sampling_session(body: JoinBody, owner: str) -> dict[str, Any]:
        _, sampler = service.sessions.sampler(body.sampling_session_id, owner)
        sampler.joined += 1
        return {"type": "join_sampling_session", "client_counter": sampler.joined}

    async def asample(request: Request, owner: str) -> Answer:
        promise, ids = service.sample(await routes.read(request, sample_request, _JSON_BYTES), owner)
        return {"request_id": promise.request_id, "sample_sequence_ids": ids}

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

    async def forward_backward(request: Request, owner: str) -> Answer:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _PROTOBUF:
            raise UnsupportedEncodingError(f"send the data as {_PROTOBUF}, as the tinker package does")
        if request.headers.get("content-encoding", "identity") != "identity":
            raise UnsupportedEncodingError("send protobuf as it is, not compressed")
        limits = routes.admission.limits
        raw = await read_body(request, limits.max_body_bytes, within_seconds=limits.max_body_seconds)
        body = await off_loop(len(raw), lambda: loss_request_of_proto(raw))
        return _promised(service.forward_backward(body, owner))

    async def retrieve(request: Request, owner: str) -> Answer:
        body = await routes.read(request, lambda fields: checked(RetrieveBody, fields))
        promise = service.promises.get(body.request_id, owner)
        with routes.admission.resting(request.state.api_key):
            done = await promise.wait(service.settings.retrieve_seconds)
        if not done:
            again = {"type": "try_again", "request_id": promise.request_id, "queue_state": "active"}
            return json_response(again, 408)
        result = promise.result
        if promise.failure is not None:
            response = json_response({"error": str(promise.failure), "category": promise.failure.category})
        elif isinstance(result, LossAnswer | SampleAnswer):
            response = Response(await off_loop(1 << 17, result.to_proto), media_type=_PROTOBUF)
        else:
            response = json_response(result)
        service.promises.fetched(promise)
        return response

    return [
        routes.fixed("/client/config", client_config),
        routes.fixed("/client/dynamic_config", {"sample_cancel_enabled": True}),
        routes.post("/create_session", Body, create_session),
        routes.post("/session_heartbeat", HeartbeatBody, heartbeat),
        routes.queue("/create_model", CreateModelBody, service.create_model),
        routes.queue("/load_weights", LoadWeightsBody, service.load_weights),
        routes.post("/get_info", ModelBody, get_info),
        routes.route("POST", "/forward_backward", forward_backward),
        routes.queue("/optim_step", OptimStepBody, service.optim_step),
        routes.queue("/save_weights", SaveBody, service.save_state),
        routes.queue("/save_weights_for_sampler", SaveBody, service.save_for_sampler),
        routes.post("/create_sampling_session", SamplingSessionBody, create_sampling_session),
        routes.post("/join_sampling_session", JoinBody, join_sampling_session),
        routes.route("POST", "/asample", asample),
        routes.post("/cancel_future", RetrieveBody, cancel_future),
        routes.route("POST", "/retrieve_future", retrieve),
        routes.fixed("/telemetry", {"status": "accepted"}, _REPORT_BYTES),
    ]


def _promised(promise: Promise) -> dict[str, Any]:
    """Return the answer to a request of a model, whose id is the request's without its number."""
    return {"request_id": promise.request_id, "model_id": promise.request_id.rpartition(":")[0]}


def record_routes(routes: TinkerRoutes) -> list[Route]:
    """Return the routes that look up the server, a training run, a sampler or saved weights, and end a session."""
    service = routes.service
    checkpoints = service.checkpoints

    async def capabilities(request: Request, owner: str) -> Answer:
        models = [
            {"model_name": name, "max_context_length": service.context_length, "trainable": True, "sampleable": True}
            for name in service.model.names
        ]
        return {"supported_models": models}

    async def training_run(request: Request, owner: str) -> Answer:
        run = checkpoints.run(request.path_params["run"], owner)
        metadata = None if run.user_metadata is None else {str(k): str(v) for k, v in run.user_metadata.items()}
        return {
            "training_run_id": run.run_id,
            "base_model": run.base_model,
            "model_owner": "local",
            "is_lora": True,
            "lora_rank": run.shape.rank,
            "last_request_time": datetime.fromtimestamp(run.created, timezone.utc).isoformat(),
            "user_metadata": metadata,
        }

    async def weights_info(body: PathBody, owner: str) -> dict[str, Any]:
        run = checkpoints.get(body.tinker_path, owner).run
        return {
            "base_model": run.base_model,
            "is_lora": True,
            "lora_rank": run.shape.rank,
            "train_unembed": False,
            "train_mlp": run.shape.mlp,
            "train_attn": run.shape.attention,
        }

    async def delete(request: Request, owner: str) -> Answer:
        path = f"{SCHEME}{request.path_params['run']}/{request.path_params['checkpoint']}"
        await asyncio.to_thread(checkpoints.remove, checkpoints.get(path, owner))
        return {}

    async def sampler(request: Request, owner: str) -> Answer:
        _, sampler = service.sessions.sampler(request.path_params["sampler"], owner)
        return {"sampler_id": sampler.session_id, "base_model": sampler.base_model, "model_path": sampler.model_path}

    async def finish(request: Request, owner: str) -> Answer:
        await routes.read(request, lambda fields: None)
        session_id = request.path_params["session"]
        if service.sessions.find(session_id, owner) is not None:
            await service.end_session(session_id)
        return {}

    async def healthz(request: Request, owner: str) -> Answer:
        return {"status": "ok"}

    return [
        routes.route("GET", "/get_server_capabilities", capabilities),
        routes.route("GET", "/healthz", healthz),
        routes.route("GET", "/training_runs/{run}", training_run),
        routes.route("DELETE", "/training_runs/{run}/checkpoints/{checkpoint:path}", delete),
        routes.post("/weights_info", PathBody, weights_info),
        routes.route("GET", "/samplers/{sampler}", sampler),
        routes.route("POST", "/sessions/{session}/finish", finish),
    ]
