"""The reward service: HTTP routes, the service behind them, and the server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from prometheus_client import Counter, Histogram
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ... import __version__
from ...http import (
    METRICS_CONTENT_TYPE,
    Admission,
    AdmittedEndpoint,
    AdmittingServer,
    BadRequestError,
    Body,
    Endpoint,
    MetricFamily,
    NotServedError,
    RequestLimits,
    RequestMetrics,
    checked,
    json_response,
    new_app,
    openai_response,
    read_json,
    unless_disconnected,
)
from ...policy import TorchThread
from .batcher import Batcher
from .rendering import BatchSettings, Rendered
from .requests import (
    Messages,
    PairAnswer,
    PairBatchAnswer,
    PairBatchRequest,
    PairRequest,
    ScoreAnswer,
    ScoreBatchAnswer,
    ScoreBatchRequest,
    ScoreRequest,
    service_document,
)
from .reward_model import RewardModel, ScoringBatch

_STEP: Final = 8
"""Texts that a request renders in a row before other requests have their turn."""
_CHARACTERS_PER_TOKEN: Final = 16
_CHARACTERS_BESIDE: Final = 64 * 1024
"""A text with more characters than these two allow is refused instead of cut: most of the work would be wasted."""
_TIE: Final = 1e-6
"""Scores that differ by less, relative to their size, are equal but for rounding."""


@dataclass(frozen=True)
class _Text:
    messages: Messages
    tools: list[dict[str, Any]] | None
    where: str = ""
    """Field of the request."""


class ScoringService:
    """Answers requests. Used from one event loop.

    Args:
        model: renders texts, in a thread.
        batcher: scores texts.
        max_items: largest number of texts or pairs of a request.
    """

    def __init__(self, model: RewardModel, batcher: Batcher, max_items: int) -> None:
        self._model = model
        self._batcher = batcher
        self._max_items = max_items
        self._renderer_thread = ThreadPoolExecutor(1, "score renderer")

    async def score(self, request: ScoreRequest) -> ScoreAnswer:
        """Score one text."""
        [(score, text)] = await self._scored([_Text(request.conversation(), request.tools)])
        return ScoreAnswer(score=score, tokens=len(text.ids), truncated=text.truncated)

    async def score_batch(self, request: ScoreBatchRequest) -> ScoreBatchAnswer:
        """Score many texts."""
        self._check_count(len(request.items))
        scored = await self._scored(
            [_Text(item.conversation(), item.tools, f"items[{n}]") for n, item in enumerate(request.items)]
        )
        return ScoreBatchAnswer(
            scores=[score for score, _ in scored],
            tokens=[len(text.ids) for _, text in scored],
            truncated=[text.truncated for _, text in scored],
        )

    async def score_pair(self, request: PairRequest) -> PairAnswer:
        """Compare two answers to one prompt."""
        first, second = await self._scored([_Text(messages, request.tools) for messages in request.conversations()])
        return _compared(first, second)

    async def score_pair_batch(self, request: PairBatchRequest) -> PairBatchAnswer:
        """Compare many pairs."""
        self._check_count(len(request.items))
        scored = await self._scored(
            [
                _Text(messages, item.tools, f"items[{n}]")
                for n, item in enumerate(request.items)
                for messages in item.conversations()
            ]
        )
        return PairBatchAnswer(results=[_compared(*scored[n : n + 2]) for n in range(0, len(scored), 2)])

    def close(self) -> None:
        """Stop rendering."""
        self._renderer_thread.shutdown(wait=False, cancel_futures=True)

    def _check_count(self, items: int) -> None:
        if items > self._max_items:
            raise BadRequestError(f"{items} items, but at most {self._max_items} are taken (max_items)", param="items")

    async def _scored(self, texts: list[_Text]) -> list[tuple[float, Rendered]]:
        """Return the score and the rendered text of each."""
        loop = asyncio.get_running_loop()
        rendered: list[Rendered] = []
        for start in range(0, len(texts), _STEP):  # requests take turns at the thread
            step = texts[start : start + _STEP]
            rendered += await loop.run_in_executor(self._renderer_thread, _rendered, self._model, step)
        return list(zip(await self._batcher.scores(rendered), rendered, strict=True))


def _rendered(model: RewardModel, texts: Sequence[_Text]) -> list[Rendered]:
    rendered: list[Rendered] = []
    for text in texts:
        try:
            _check_length(model, text)
            rendered.append(model.renderer.render(text.messages, text.tools))
        except BadRequestError as error:
            if not text.where:
                raise
            raise BadRequestError(f"{text.where}: {error.message}", param=text.where, code=error.code) from None
    return rendered


def _check_length(model: RewardModel, text: _Text) -> None:
    bound = model.max_length * _CHARACTERS_PER_TOKEN + _CHARACTERS_BESIDE
    if _is_longer([text.messages, text.tools], bound):
        raise BadRequestError(
            f"the text has more than {bound} characters, of which at most {model.max_length} tokens are read: "
            "shorten it, or serve with another `max_length`",
            code="context_length_exceeded",
        )


def _is_longer(value: Any, bound: int) -> bool:
    """Return True if a JSON value has about more characters than the bound. Takes time linear in the bound."""
    size, left = 0, [value]
    while left and size <= bound:
        part = left.pop()
        if isinstance(part, dict | list):
            size += len(part)
            if size <= bound:
                left += [*part, *part.values()] if isinstance(part, dict) else part
        else:
            size += len(part) if isinstance(part, str) else 1
    return size > bound


def _compared(first: tuple[float, Rendered], second: tuple[float, Rendered]) -> PairAnswer:
    (score_a, text_a), (score_b, text_b) = first, second
    margin = score_a - score_b
    tie = abs(margin) <= _TIE * max(1.0, abs(score_a), abs(score_b))
    return PairAnswer(
        score_a=score_a,
        score_b=score_b,
        margin=margin,
        preferred="tie" if tie else "a" if margin > 0 else "b",
        truncated=text_a.truncated or text_b.truncated,
    )


logger = logging.getLogger(__name__)


class ScoreServer(AdmittingServer):
    """Server of the reward service.

    Args:
        model: the reward model; used from one thread.
        thread: the thread on which torch computes; by default a new one. It ends with the server.
        host: address to listen on.
        port: port to listen on; 0 takes a free port.
        batches: settings of batches.
        limits: limits of requests.
        api_keys: accepted bearer tokens; without any, no key is needed.
    """

    def __init__(
        self,
        model: RewardModel,
        *,
        thread: TorchThread | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        batches: BatchSettings | None = None,
        limits: RequestLimits | None = None,
        api_keys: Sequence[str] = (),
    ) -> None:
        batches = batches or BatchSettings()
        self.model = model
        self._torch = thread or TorchThread()
        self.metrics = ScoringMetrics(lambda: queue_of(self.batcher))
        self.batcher = Batcher(model, self._torch, batches, self.metrics.on_batch)
        admission = Admission(limits or RequestLimits(), api_keys)
        app = create_app(model, self.batcher, admission, self.metrics, batches.max_items)
        super().__init__(app, admission, host, port, "reward service")

    @property
    def url(self) -> str:
        """Address for clients on this machine, as in `RemoteReward(server.url)`."""
        return self.root

    def announce(self) -> None:
        logger.info("serving the scores of %s at %s", self.model.name, self.url)

    def stop(self, timeout: float = 10.0) -> None:
        """Refuse new requests with status 503 and a `Retry-After`, give running ones `timeout` seconds, then cancel
        them. Blocks. A stopped server cannot be started again."""
        super().stop(timeout)
        self._torch.close()


_ABOUT = (
    "A reward model that scores and compares answers; /openapi.json describes every request. Where keys are set, "
    "requests carry 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
)

BodyT = TypeVar("BodyT", bound=Body)


def create_app(
    model: RewardModel, batcher: Batcher, admission: Admission, metrics: ScoringMetrics, max_items: int
) -> Starlette:
    """Return the ASGI application; the batcher runs while it serves."""
    service = ScoringService(model, batcher, max_items)
    limit = admission.limits.max_body_bytes

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        running = asyncio.create_task(batcher.run())
        yield
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        service.close()

    def scoring(kind: type[BodyT], answer: Callable[[BodyT], Awaitable[BaseModel]]) -> Endpoint:
        async def serve(request: Request) -> Response:
            if request.method != "POST":
                raise NotServedError(request.method, request.url.path, 405, {"Allow": "POST"})
            body = await read_json(
                request,
                limit,
                lambda fields: checked(kind, fields),
                within_seconds=admission.limits.max_body_seconds,
            )
            result = await unless_disconnected(answer(body), request.receive)
            return json_response(result.model_dump())

        return serve

    async def health(request: Request) -> Response:
        return json_response(_health(model, batcher, admission), 503 if admission.draining else 200)

    async def openapi(request: Request) -> Response:
        return json_response(service_document(__version__, model.name, limit, max_items))

    async def scrape(request: Request) -> Response:
        return Response(metrics.text(), media_type=METRICS_CONTENT_TYPE)

    endpoints = {
        "/score": scoring(ScoreRequest, service.score),
        "/score/batch": scoring(ScoreBatchRequest, service.score_batch),
        "/score-pair": scoring(PairRequest, service.score_pair),
        "/score-pair/batch": scoring(PairBatchRequest, service.score_pair_batch),
    }
    return new_app(
        openai_response,
        admission.keys,
        title="mini-agentic-rl reward service",
        about=_ABOUT,
        routes=[
            *(
                # of any method, so that nothing is answered without a key
                Route(path, AdmittedEndpoint(path, endpoint, admission, metrics, openai_response))
                for path, endpoint in endpoints.items()
            ),
            Route("/health", health, methods=["GET"]),
            Route("/metrics", scrape, methods=["GET"]),
            Route("/openapi.json", openapi, methods=["GET"]),
        ],
        lifespan=lifespan,
    )


def queue_of(batcher: Batcher) -> dict[str, int]:
    """Return the numbers of waiting and of computing texts."""
    return {"waiting": batcher.waiting, "computing": batcher.computing}


def _health(model: RewardModel, batcher: Batcher, admission: Admission) -> dict[str, Any]:
    return {
        "status": "draining" if admission.draining else "ok",
        "ready": not admission.draining,
        "model": model.name,
        "device": str(model.device),
        "max_length": model.max_length,
        "shares_prefixes": model.shares_prefixes,
        "requests": admission.active,
        "queue": queue_of(batcher),
    }


_PREFIX: Final = "mini_agentic_rl_scoring"
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class ScoringMetrics(RequestMetrics):
    """Metrics of requests and batches.

    Args:
        queue: returns the numbers of waiting and of computing texts.
    """

    def __init__(self, queue: Callable[[], Mapping[str, int]]) -> None:
        def waiting() -> Iterable[MetricFamily]:
            yield MetricFamily.by_kind("queue", "Texts that wait, and that are computed.", queue())

        super().__init__(_PREFIX, "path", _SECONDS, waiting)
        registry = self.registry
        self._texts = Counter(f"{_PREFIX}_texts", "Texts that were scored.", registry=registry)
        self._tokens = Counter(f"{_PREFIX}_tokens", "Tokens that went through the model.", registry=registry)
        self._batch = Histogram(f"{_PREFIX}_batch_texts", "Texts of a batch.", buckets=_SIZES, registry=registry)
        self._batch_seconds = Histogram(
            f"{_PREFIX}_batch_seconds", "Seconds that a batch took.", buckets=_SECONDS, registry=registry
        )

    def on_batch(self, batch: ScoringBatch, seconds: float) -> None:
        """Count a batch."""
        self._texts.inc(len(batch.items))
        self._tokens.inc(batch.tokens)
        self._batch.observe(len(batch.items))
        self._batch_seconds.observe(seconds)
