"""The Tinker API on a model of this process, served over HTTP from a thread of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from transformers import PreTrainedModel

from ...commands import accepted_keys
from ...files import one_writer
from ...gateway import load_tokenizer
from ...http import (
    METRICS_CONTENT_TYPE,
    Admission,
    AdmittingServer,
    BadRequestError,
    MetricFamily,
    RequestLimits,
    RequestMetrics,
    checked,
    json_response,
    new_app,
)
from ...policy import EngineSettings, LearnerSettings, LoraSettings, Policy, PolicyError, resolve_model
from .checkpoints import SCHEME, CheckpointFolder, ClientRun, SavedCheckpoint
from .routes import TinkerModel, TinkerRoutes, TinkerService, refused, work_routes
from .sessions import UnknownClientError
from .settings import ClientSettings, RefusedError, TinkerSettings
from .wire.messages import LifetimeBody, PathBody

# The routes of the Tinker API that look things up: models, training runs, checkpoints, sessions.


_LONGEST_PAGE = 1000
_OWNER = "local"
_TYPES = {"weights": "training", "sampler_weights": "sampler"}


def record_routes(routes: TinkerRoutes) -> list[Route]:
    """Return the routes that look things up, and those that change what was saved."""
    service = routes.service
    kept = service.checkpoints

    def capabilities(request: Request, owner: str) -> dict[str, Any]:
        models = [
            {"model_name": name, "max_context_length": service.context_length, "trainable": True, "sampleable": True}
            for name in service.model.names
        ]
        return {"supported_models": models}

    def health(request: Request, owner: str) -> dict[str, Any]:
        return {"status": "ok"}

    def run_of(request: Request, owner: str) -> ClientRun:
        try:
            return kept.run(request.path_params["run"], owner)
        except RefusedError as error:
            raise UnknownClientError(str(error)) from error

    def checkpoint_of(request: Request) -> SavedCheckpoint:
        owner = routes.owner(request)
        path = f"{SCHEME}{request.path_params['run']}/{request.path_params['checkpoint']}"
        found = kept.find(path, owner)
        if found is None:
            raise UnknownClientError(f"there is no checkpoint {path!r}")
        return found

    def run(request: Request, owner: str) -> dict[str, Any]:
        found = run_of(request, owner)
        return _run(found, kept.all(owner, found.run_id))

    def runs(request: Request, owner: str) -> dict[str, Any]:
        shown, cursor = _page(request, kept.runs(owner))
        of_run: dict[str, list[SavedCheckpoint]] = {}
        for each in kept.all(owner):
            of_run.setdefault(each.run.run_id, []).append(each)
        return {"training_runs": [_run(each, of_run.get(each.run_id, [])) for each in shown], "cursor": cursor}

    def run_checkpoints(request: Request, owner: str) -> dict[str, Any]:
        return {"checkpoints": [_checkpoint(each) for each in kept.all(owner, run_of(request, owner).run_id)]}

    def checkpoints(request: Request, owner: str) -> dict[str, Any]:
        shown, cursor = _page(request, kept.all(owner))
        return {"checkpoints": [_checkpoint(each) for each in shown], "cursor": cursor}

    async def delete(request: Request) -> Response:
        await asyncio.to_thread(kept.remove, checkpoint_of(request))
        return json_response({})

    async def lifetime(request: Request) -> Response:
        body = await routes.read(request, lambda fields: checked(LifetimeBody, fields))
        await asyncio.to_thread(kept.keep_for, checkpoint_of(request), body.ttl_seconds)
        return json_response({})

    async def weights_info(body: PathBody, owner: str) -> dict[str, Any]:
        found = kept.find(body.tinker_path, owner)
        if found is None:
            raise UnknownClientError(f"there are no weights at {body.tinker_path!r} on this server")
        shape = found.run.shape
        return {
            "base_model": found.run.base_model,
            "is_lora": True,
            "lora_rank": shape.rank,
            "train_unembed": False,
            "train_mlp": shape.mlp,
            "train_attn": shape.attention,
        }

    def sampler(request: Request, owner: str) -> dict[str, Any]:
        _, found = service.sessions.sampler(request.path_params["sampler"], owner)
        return {"sampler_id": found.session_id, "base_model": found.base_model, "model_path": found.model_path}

    def sessions(request: Request, owner: str) -> dict[str, Any]:
        return {"sessions": [each.session_id for each in service.sessions.of(owner)]}

    def session(request: Request, owner: str) -> dict[str, Any]:
        found = service.sessions.hear(request.path_params["session"], owner)
        return {
            "training_run_ids": list(found.models),
            "sampler_ids": list(found.samplers),
            "user_metadata": found.user_metadata,
            "display_name": found.display_name,
        }

    async def finish(request: Request) -> Response:
        await routes.read(request, lambda fields: None)
        session_id = request.path_params["session"]
        if any(each.session_id == session_id for each in service.sessions.of(routes.owner(request))):
            await service.end_session(session_id)
        return json_response({})

    a_run, a_checkpoint = "/training_runs/{run}", "/training_runs/{run}/checkpoints/{checkpoint:path}"
    return [
        routes.get("/get_server_capabilities", capabilities),
        routes.get("/healthz", health),
        routes.get("/training_runs", runs),
        routes.get(a_run, run),
        routes.get(a_run + "/checkpoints", run_checkpoints),
        routes.route("PUT", a_checkpoint + "/ttl", lifetime),
        routes.route("DELETE", a_checkpoint, delete),
        routes.get("/checkpoints", checkpoints),
        routes.post("/weights_info", PathBody, weights_info),
        routes.get("/samplers/{sampler}", sampler),
        routes.get("/sessions", sessions),
        routes.get("/sessions/{session}", session),
        routes.route("POST", "/sessions/{session}/finish", finish),
    ]


def _page(request: Request, found: list[Any]) -> tuple[list[Any], dict[str, int]]:
    try:
        limit = min(_LONGEST_PAGE, max(0, int(request.query_params.get("limit", 100))))
        offset = max(0, int(request.query_params.get("offset", 0)))
    except ValueError:
        raise BadRequestError("limit and offset are whole numbers") from None
    return found[offset : offset + limit], {"offset": offset, "limit": limit, "total_count": len(found)}


def _run(run: ClientRun, checkpoints: list[SavedCheckpoint]) -> dict[str, Any]:
    latest = {kind: next((_checkpoint(each) for each in checkpoints if each.kind == kind), None) for kind in _TYPES}
    return {
        "training_run_id": run.run_id,
        "base_model": run.base_model,
        "model_owner": _OWNER,
        "is_lora": True,
        "lora_rank": run.shape.rank,
        "last_request_time": _time(max([run.created, *(each.created for each in checkpoints)])),
        "last_checkpoint": latest["weights"],
        "last_sampler_checkpoint": latest["sampler_weights"],
        "user_metadata": _texts(run.user_metadata),
    }


def _checkpoint(checkpoint: SavedCheckpoint) -> dict[str, Any]:
    return {
        "checkpoint_id": f"{checkpoint.kind}/{checkpoint.name}",
        "checkpoint_type": _TYPES[checkpoint.kind],
        "time": _time(checkpoint.created),
        "tinker_path": checkpoint.path,
        "size_bytes": checkpoint.size,
        "public": False,
        "user_metadata": _texts(checkpoint.user_metadata),
        "expires_at": None if checkpoint.expires is None else _time(checkpoint.expires),
    }


def _texts(metadata: Any) -> dict[str, str] | None:
    return None if metadata is None else {str(key): str(value) for key, value in metadata.items()}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat()


logger = logging.getLogger(__name__)


_ABOUT: Final = (
    "The Tinker API on a model in this process: set TINKER_BASE_URL to this address, and TINKER_API_KEY to a key of "
    "it, or to any that begins with tml- where it asks for none."
)
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class TinkerServer(AdmittingServer):
    """Serve the Tinker API: clients each train an adapter of their own on one model, and sample with it.

    Args:
        service: does what the clients ask; ends with the server.
        host: address to listen on.
        port: port to listen on; 0 takes a free one, which `port` then tells.
        api_keys: keys that are accepted; without one none is asked for.
        limits: which requests are taken.
    """

    def __init__(
        self,
        service: TinkerService,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        api_keys: Sequence[str] = (),
        limits: RequestLimits | None = None,
    ) -> None:
        self.service = service
        admission = Admission(limits or RequestLimits(), api_keys)
        super().__init__(_create_app(service, admission), admission, host, port, "Tinker server")

    @classmethod
    def load(
        cls,
        model: str | PreTrainedModel,
        output_dir: Path,
        *,
        tokenizer: Any | None = None,
        names: Sequence[str] = (),
        tokenizer_id: str | None = None,
        engine: EngineSettings | None = None,
        learner: LearnerSettings | None = None,
        clients: ClientSettings | None = None,
        load: dict[str, Any] | None = None,
        **options: Any,
    ) -> TinkerServer:
        """Load a model, and return a server of it that has not been started.

        Args:
            model: a name or folder, or a loaded model.
            output_dir: folder of saved states, in which those of earlier servers are found.
            tokenizer: of a loaded model.
            names: further names that clients may call the model; the first is what they are told.
            tokenizer_id: name or folder that clients load the tokenizer from; None takes the model's.
            load: further options of `load_model`.
            options: those of the server.

        Raises:
            UserError: the model cannot be loaded, or its engine samples on a device of its own.
        """
        if engine is not None and engine.sampler_device is not None:
            raise PolicyError("clients' adapters come and go on one device only", setting="sampler_device")
        source = str(resolve_model(model)) if isinstance(model, str) else model.name_or_path
        loaded = load_tokenizer(model, tokenizer)
        # Every layer has an adapter from the start, which nobody uses: those of clients are put beside it.
        policy = Policy.load(model, engine=engine, lora=LoraSettings(r=1, alpha=1), **(load or {}))
        try:
            known = [*names, *([model] if isinstance(model, str) else []), source, Path(source).name]
            served = TinkerModel(
                names=tuple(dict.fromkeys(name for name in known if name)) or ("model",),
                tokenizer=loaded,
                tokenizer_id=tokenizer_id or source,
                eos_ids=_eos_ids(policy, loaded),
            )
            service = TinkerService(
                policy,
                served,
                CheckpointFolder(output_dir),
                clients or ClientSettings(),
                learner or LearnerSettings(),
            )
            return cls(service, **options)
        except BaseException:
            policy.close()
            raise

    def announce(self) -> None:
        logger.info("serving the Tinker API of %s at %s", self.service.model.names[0], self.root)

    def stop(self, timeout: float = 5.0) -> None:
        """Refuse new requests, give those under way `timeout` seconds, then end; it is not started again."""
        if self.running:
            super().stop(timeout)
        self.service.close()


@contextmanager
def open_tinker_server(settings: TinkerSettings) -> Iterator[TinkerServer]:
    """Yield a running server; it is stopped at the end of the block.

    Raises:
        UserError: the model or the file of keys cannot be read, or the folder or the port cannot be had.
    """
    keys = accepted_keys(settings.server.api_key, settings.server.api_key_file)
    load = settings.load.model_dump()
    with one_writer(settings.output_dir):
        server = TinkerServer.load(
            load.pop("model"),
            settings.output_dir,
            names=settings.served_names,
            tokenizer_id=settings.client_tokenizer,
            engine=settings.engine,
            learner=settings.learner,
            clients=settings.clients,
            load=load,
            host=settings.server.host,
            port=settings.server.port,
            api_keys=keys,
            limits=settings.limits,
        )
        try:
            server.start()
            yield server
        finally:
            server.stop(settings.server.drain_seconds)


def _create_app(service: TinkerService, admission: Admission) -> Starlette:
    metrics = RequestMetrics("mini_agentic_rl_tinker", "route", _SECONDS)

    def inside() -> Iterable[MetricFamily]:
        yield MetricFamily.by_kind("open", "Requests and clients.", _counts(service))

    metrics.read_when_asked(inside)
    routes = TinkerRoutes(service, admission, metrics)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        sweeping = asyncio.create_task(service.sweep())
        yield
        sweeping.cancel()
        with suppress(asyncio.CancelledError):
            await sweeping
        for session in list(service.sessions):
            await service.end_session(session.session_id)

    async def health(request: Request) -> Response:
        state = {"status": "draining" if admission.draining else "ok", "models": service.model.names}
        return json_response(state | _counts(service), 503 if admission.draining else 200)

    async def scrape(request: Request) -> Response:
        return Response(metrics.text(), media_type=METRICS_CONTENT_TYPE)

    return new_app(
        refused,
        admission.keys,
        title="mini-agentic-rl Tinker API",
        about=_ABOUT,
        routes=[
            *work_routes(routes),
            *record_routes(routes),
            Route("/health", health, methods=["GET"]),
            Route("/metrics", scrape, methods=["GET"]),
        ],
        lifespan=lifespan,
    )


def _counts(service: TinkerService) -> dict[str, int]:
    return {
        "sessions": sum(1 for _ in service.sessions),
        "requests": len(service.promises),
        "adapters": service.trainings.count,
    }


def _eos_ids(policy: Policy, tokenizer: Any) -> tuple[int, ...]:
    config = policy.model.base.generation_config
    given = None if config is None else config.eos_token_id
    ids = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    if tokenizer.eos_token_id is not None:
        ids.append(tokenizer.eos_token_id)
    return tuple(dict.fromkeys(int(each) for each in ids))
