"""The Tinker API on a model of this process, served over HTTP from a thread of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
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
    MetricFamily,
    RequestLimits,
    RequestMetrics,
    json_response,
    new_app,
)
from ...policy import EngineSettings, LearnerSettings, LoraSettings, Policy, resolve_model
from .checkpoints import CheckpointFolder
from .routes import TinkerRoutes, record_routes, refused, work_routes
from .service import TinkerModel, TinkerService
from .settings import ClientSettings, TinkerSettings

logger = logging.getLogger(__name__)


_ABOUT: Final = (
    "The Tinker API on a model in this process: set TINKER_BASE_URL to this address, and TINKER_API_KEY to a key of "
    "it, or to any that begins with tml- where it asks for none."
)
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class TinkerServer(AdmittingServer):
    """Serve the Tinker API: clients each train an adapter of their own on one model, and sample with it.

    Args:
        service: does the work; closed with the server.
        host: address to listen on.
        port: port to listen on; 0 takes a free one, found in `port` after the start.
        api_keys: accepted keys; without any, requests need none.
        limits: limits of requests.
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
            names: further names by which clients may request the model; the first one is listed.
            tokenizer_id: name or folder that clients load the tokenizer from; None takes the model's.
            load: further options of `load_model`.
            options: those of the server.

        Raises:
            UserError: the model cannot be loaded, or its engine samples on a device of its own.
        """
        source = str(resolve_model(model)) if isinstance(model, str) else model.name_or_path
        loaded = load_tokenizer(model, tokenizer)
        end_id = () if loaded.eos_token_id is None else (loaded.eos_token_id,)
        # Every layer has an adapter from the start, which nobody uses: those of clients are put beside it.
        policy = Policy.load(model, engine=engine, lora=LoraSettings(r=1, alpha=1), **(load or {}))
        try:
            known = [*names, *([model] if isinstance(model, str) else []), source, Path(source).name]
            served = TinkerModel(
                names=tuple(dict.fromkeys(name for name in known if name)) or ("model",),
                tokenizer=loaded,
                tokenizer_id=tokenizer_id or source,
                eos_ids=tuple(dict.fromkeys((*policy.eos_ids, *end_id))),
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
    keys = accepted_keys(settings.server.host, settings.server.api_key, settings.server.api_key_file)
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
    def inside() -> Iterable[MetricFamily]:
        yield MetricFamily.by_kind("open", "Requests and clients.", _counts(service))

    metrics = RequestMetrics("mini_agentic_rl_tinker", "route", _SECONDS, inside)
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
        # It needs no key, so it does not name the model: the name may be a path.
        state = "draining" if admission.draining else "ok"
        return json_response({"status": state, **_counts(service)}, 503 if admission.draining else 200)

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
        "adapters": service.adapter_count,
    }
