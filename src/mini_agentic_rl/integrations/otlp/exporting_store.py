"""A store in front of another one, whose spans are exported as they pass."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from opentelemetry.sdk.resources import Resource

from ...semconv import LightningResourceAttributes
from ...store import ForwardingStore, LightningStore, LightningStoreCapabilities, LightningStoreClient, forward_methods
from ...trainer.settings import TraceExportSettings
from ...types import Attempt, Span
from .attempt_trace import AttemptFacts
from .conventions import PROVIDER, ExportedContent
from .receiver import receiver_of
from .span_exporter import SpanExporter

logger = logging.getLogger(__name__)

_SPANS: Final = ("add_span", "add_many_spans", "add_otel_span")
_ENDED: Final = ("succeeded", "failed", "timeout", "unresponsive", "cancelled")


class ExportingStore(ForwardingStore):
    """Store that hands every span which it has stored to an exporter, and tells it when attempts end.

    Sent to another process it is the store behind it: spans are exported from here.

    Args:
        store: keeps what is stored.
        exporter: takes the spans; whoever made it closes it.
    """

    def __init__(self, store: LightningStore, exporter: SpanExporter) -> None:
        self.store = store
        self._exporter = exporter

    def __reduce__(self) -> tuple[Any, ...]:
        return _same, (self.store,)

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return self.store.capabilities

    def otlp_traces_endpoint(self) -> str:
        return self.store.otlp_traces_endpoint()

    async def close(self) -> None:
        await self.store.close()

    async def _forward(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = await getattr(self.store, name)(*args, **kwargs)
        try:
            self._look_at(name, result)
        except Exception:  # whatever it is, the store has done what it was asked to
            logger.exception("what %s stored could not be exported", name)
        return result

    def _look_at(self, name: str, result: Any) -> None:
        if name in _SPANS:
            stored = [result] if isinstance(result, Span) else result
            if stored:
                self._exporter.take(stored)
        elif name == "update_attempt" and isinstance(result, Attempt) and result.status in _ENDED:
            self._exporter.end(
                AttemptFacts(
                    rollout_id=result.rollout_id,
                    attempt_id=result.attempt_id,
                    agent="",
                    status=result.status,
                    number=result.sequence_id,
                    error=None if result.metadata.get("error") is None else str(result.metadata["error"]),
                    start_time=result.start_time,
                    end_time=result.end_time,
                )
            )
        elif name == "update_rollout" and result.status in _ENDED:
            self._exporter.end_rollout(result.rollout_id, result.status)


forward_methods(ExportingStore)


def _same(store: LightningStore) -> LightningStore:
    return store


@contextmanager
def exported(
    store: LightningStore, settings: TraceExportSettings, *, agent: str = "agent", run: Path | None = None
) -> Iterator[LightningStore]:
    """Yield the store, with an exporter behind it where the settings or the environment ask for one.

    Args:
        store: an open store of this process.
        agent: name of the agent.
        run: folder of the run.

    Raises:
        UserError: the address of the settings cannot be used.
    """
    receiver = receiver_of(settings)
    if receiver is None:
        yield store
        return
    if isinstance(store, LightningStoreClient):
        if settings.otlp is not None:
            logger.warning(
                "the spans are in another process's store, which exports them: agl store --otlp %s", settings.otlp
            )
        yield store
        return
    exporter = SpanExporter(
        receiver,
        content=ExportedContent(messages=settings.otlp_messages, tokens=settings.otlp_tokens),
        resource=_resource(run),
        agent=agent,
        version=_version(),
    )
    logger.info("spans are exported to %s", receiver.shown)
    try:
        yield ExportingStore(store, exporter)
    finally:
        exporter.close()


def _resource(run: Path | None) -> dict[str, Any]:
    """Return what makes the spans; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win."""
    own: dict[str, Any] = {"service.name": PROVIDER, "service.version": _version()}
    if run is not None:
        own["agentlightning.run"] = run.name
    told = dict(Resource.create().attributes)
    if str(told.get("service.name", "")).startswith("unknown_service"):
        del told["service.name"]
    return {**own, **told, LightningResourceAttributes.TRACER_NAME.value: "mini_agentic_rl"}


def _version() -> str:
    from ... import __version__

    return __version__
