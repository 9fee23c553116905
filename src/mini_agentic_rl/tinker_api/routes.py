"""The routes of the Tinker API that begin, train, sample and fetch results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..http import (
    Admission,
    AdmittedEndpoint,
    BadRequestError,
    Body,
    Endpoint,
    HttpError,
    RequestMetrics,
    UnsupportedEncodingError,
    checked,
    json_response,
    off_loop,
    read_body,
    read_json,
)
from .errors import RefusedError
from .promises import Promise
from .service import TinkerService
from .sessions import UnknownClientError
from .wire.bodies import (
    AnythingBody,
    CreateModelBody,
    HeartbeatBody,
    JoinBody,
    LoadWeightsBody,
    ModelBody,
    OptimStepBody,
    RetrieveBody,
    SampleBody,
    SamplingSessionBody,
    SaveBody,
    SessionBody,
)
from .wire.data import LossRequest, loss_request_of_json, loss_request_of_proto
from .wire.results import LossAnswer, SampleAnswer

PREFIX: Final = "/api/v1"
_PROTOBUF: Final = "application/x-protobuf"

BodyT = TypeVar("BodyT", bound=Body)


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
            except RefusedError as error:  # of what is answered at once
                raise BadRequestError(str(error)) from error

        name = path.strip("/").split("/")[0]
        admitted = AdmittedEndpoint(name, answer, self.admission, self.metrics, refused)
        return Route(PREFIX + path, admitted, methods=[method])

    def post(
        self, path: str, kind: type[BodyT], answer: Callable[[BodyT], Awaitable[dict[str, Any]]], method: str = "POST"
    ) -> Route:
        """Return a route that takes a JSON object."""

        async def endpoint(request: Request) -> Response:
            limits = self.admission.limits
            body = await read_json(
                request,
                limits.max_body_bytes,
                lambda fields: checked(kind, fields),
                within_seconds=limits.max_body_seconds,
            )
            return json_response(await answer(body))

        return self.route(method, path, endpoint)

    def get(self, path: str, answer: Callable[[Request], dict[str, Any]], method: str = "GET") -> Route:
        """Return a route that takes nothing but its path."""

        async def endpoint(request: Request) -> Response:
            return json_response(answer(request))

        return self.route(method, path, endpoint)


def work_routes(routes: TinkerRoutes) -> list[Route]:
    """Return the routes of sessions, training, sampling and results."""
    service = routes.service

    async def client_config(body: AnythingBody) -> dict[str, Any]:
        # A client that waits for fewer results than it may open is never told to come again.
        most = max(1, min(400, service.settings.max_open_requests // 2))
        return {"sample_max_concurrent_requests": most, "sample_join_sampling_session": True}

    async def dynamic_config(body: AnythingBody) -> dict[str, Any]:
        return {"sample_cancel_enabled": True}

    async def create_session(body: SessionBody) -> dict[str, Any]:
        session = service.sessions.begin(body.user_metadata, body.display_name)
        return {"type": "create_session", "session_id": session.session_id}

    async def heartbeat(body: HeartbeatBody) -> dict[str, Any]:
        service.sessions.hear(body.session_id)
        return {"type": "session_heartbeat"}

    async def create_model(body: CreateModelBody) -> dict[str, Any]:
        return _promised(*service.trainings.create_model(body))

    async def load_weights(body: LoadWeightsBody) -> dict[str, Any]:
        return _promised(*service.trainings.load_weights(body))

    async def optim_step(body: OptimStepBody) -> dict[str, Any]:
        return _promised(service.trainings.optim_step(body), body.model_id)

    async def save_weights(body: SaveBody) -> dict[str, Any]:
        return _promised(service.trainings.save_state(body), body.model_id)

    async def save_for_sampler(body: SaveBody) -> dict[str, Any]:
        return _promised(service.trainings.save_for_sampler(body), body.model_id)

    async def create_sampling_session(body: SamplingSessionBody) -> dict[str, Any]:
        sampler = service.begin_sampling(body)
        return {"type": "create_sampling_session", "sampling_session_id": sampler.session_id}

    async def join_sampling_session(body: JoinBody) -> dict[str, Any]:
        _, sampler = service.sessions.sampler(body.sampling_session_id)
        sampler.joined += 1
        return {"type": "join_sampling_session", "client_counter": sampler.joined}

    async def asample(body: SampleBody) -> dict[str, Any]:
        promise, ids = service.sample(body)
        return {"request_id": promise.request_id, "sample_sequence_ids": ids}

    async def cancel_future(body: RetrieveBody) -> dict[str, Any]:
        promise = service.promises.find(body.request_id)
        if promise is not None and promise.work is not None:
            promise.work.cancel()
            service.promises.fetched(promise)
        return {}

    async def get_info(body: ModelBody) -> dict[str, Any]:
        _, model = service.sessions.of_model(body.model_id)
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

    async def telemetry(body: AnythingBody) -> dict[str, Any]:
        return {"status": "accepted"}

    async def loss(request: Request, *, forward_only: bool) -> Response:
        found = await _loss_request(request, routes.admission, forward_only)
        return json_response(_promised(service.trainings.forward_backward(found), found.model_id))

    async def forward_backward(request: Request) -> Response:
        return await loss(request, forward_only=False)

    async def forward(request: Request) -> Response:
        return await loss(request, forward_only=True)

    async def retrieve(request: Request) -> Response:
        limits = routes.admission.limits
        body = await read_json(
            request,
            limits.max_body_bytes,
            lambda fields: checked(RetrieveBody, fields),
            within_seconds=limits.max_body_seconds,
        )
        promise = service.promises.get(body.request_id)
        if not await promise.wait(service.settings.retrieve_seconds):
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
        routes.post("/asample", SampleBody, asample),
        routes.post("/cancel_future", RetrieveBody, cancel_future),
        routes.route("POST", "/retrieve_future", retrieve),
        routes.post("/telemetry", AnythingBody, telemetry),
    ]


def _promised(promise: Promise, model_id: str) -> dict[str, Any]:
    return {"request_id": promise.request_id, "model_id": model_id}


async def _loss_request(request: Request, admission: Admission, forward_only: bool) -> LossRequest:
    limits = admission.limits
    if request.headers.get("content-type", "").partition(";")[0].strip() != _PROTOBUF:
        return await read_json(
            request,
            limits.max_body_bytes,
            lambda fields: loss_request_of_json(fields, forward_only=forward_only),
            within_seconds=limits.max_body_seconds,
        )
    if request.headers.get("content-encoding", "identity") != "identity":
        raise UnsupportedEncodingError("send protobuf as it is, not compressed")
    body = await read_body(request, limits.max_body_bytes, within_seconds=limits.max_body_seconds)
    return await off_loop(len(body), lambda: loss_request_of_proto(body))


async def _result(promise: Promise, in_protobuf: bool, service: TinkerService) -> Response:
    """Return the response that tells of a result or a failure; a client hears of either once."""
    if promise.failure is not None:
        service.promises.fetched(promise)
        return json_response({"error": str(promise.failure), "category": promise.failure.category})
    result = promise.result
    if isinstance(result, LossAnswer | SampleAnswer) and in_protobuf:
        response = Response(await off_loop(1 << 17, result.to_proto), media_type=_PROTOBUF)
    elif isinstance(result, LossAnswer | SampleAnswer):
        response = json_response(result.to_json())
    else:
        response = json_response(result)
    service.promises.fetched(promise)
    return response
