"""agent-lightning 1.0's wire: the URLs that its agents call, and the events that they leave.

An agent of it finds its model in `AGL_OPENAI_BASE_URL`, which names the rollout, the attempt and the mode (train or
val), and tells its reward at `AGL_EVENT_URL`. Under these URLs the served model answers whatever name is asked for, at
the temperature that the rollout's resources say; while weights change, requests are told to come again. Every dialect
is served there, streamed or not. Its attempts are all called 0, which is taken for the latest.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import Field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...errors import log_failure
from ...http import (
    Admission,
    AdmittedEndpoint,
    Body,
    Endpoint,
    OverloadedError,
    RequestMetrics,
    checked,
    encode,
    json_response,
    openai_response,
    read_json,
)
from ...store import LightningStore
from ...types import LLM, Rollout
from ..caller import Caller
from ..dialects import CallScope
from ..errors import NotFoundError, RecordingError
from .rollout_events import EventRequest, event_span, events_of, trimmed

logger = logging.getLogger(__name__)

T = TypeVar("T")

WIRE_PREFIX: Final = "/proxy/rollout/{rollout_id}/attempt/{attempt_id}/mode/{mode}/openai"
_MODES: Final = ("train", "val")
_LATEST: Final = "0"
_REMEMBERED: Final = 4096
_STATES: Final = {"queuing": "queuing", "requeuing": "queuing", "preparing": "running", "cancelled": "failed"}
"""Names in 1.0 of the states that it has not."""


class PauseRequest(Body):
    """`POST /proxy/pause`."""

    retry_after_seconds: int = Field(default=5, ge=0, le=3600)
    reason: str | None = Field(default=None, max_length=1000)


class PausedError(OverloadedError):
    """Nothing is answered under these URLs for now."""

    def __init__(self, retry_after: float, reason: str | None) -> None:
        super().__init__(f"the gateway is paused: {reason or 'the weights change'}; try again", retry_after=retry_after)
        self.headers["X-Agl-Paused"] = "true"


@dataclass
class _Pause:
    paused: bool = False
    retry_after_seconds: int = 5
    reason: str | None = None


class RolloutWire:
    """Answers what agents of agent-lightning 1.0 ask. Used from one event loop.

    Args:
        store: where rollouts are found, and events left; None serves neither.
        admission: lets requests in, and is paused while weights change.
    """

    def __init__(self, store: LightningStore | None, admission: Admission) -> None:
        self._store = store
        self._admission = admission
        self._pause = _Pause()
        self._temperatures: OrderedDict[str, float | None] = OrderedDict()

    async def caller(self, caller: Caller) -> Caller:
        """Return who calls, the attempt 0 being the latest of its rollout.

        Raises:
            NotFoundError: the rollout has none.
            RecordingError: the store does not answer.
        """
        if caller.scope is None or caller.scope[1] != _LATEST or self._store is None:
            return caller
        return Caller(await self._attempt(*caller.scope), caller.agent, caller.traceparent)

    async def asked(self, request: Request, scope: CallScope) -> dict[str, Any] | None:
        """Return what the URL says of a call, as fields of a chat request; None for a URL that is not of this wire.

        Raises:
            NotFoundError: there is no such mode.
            PausedError: no calls are taken for now.
            RecordingError: the store does not answer.
        """
        mode = request.path_params.get("mode")
        if mode is None:
            return None
        if mode not in _MODES:
            raise NotFoundError(f"the mode {mode[:40]!r} is not served: it is train or val", code="mode_unknown")
        if self._pause.paused:
            raise PausedError(self._pause.retry_after_seconds, self._pause.reason)
        if self._admission.paused:
            raise PausedError(_Pause.retry_after_seconds, None)
        temperature = None if scope is None else await self._temperature(scope[0])
        asked: dict[str, Any] = {"return_token_ids": True}
        return asked if temperature is None else asked | {"temperature": temperature}

    def add_routes(self, app: Starlette, metrics: RequestMetrics) -> None:
        """Serve rollouts and their events, the pause, and whether the server is there, which alone asks for no key."""

        async def body(request: Request) -> dict[str, Any]:
            limits = self._admission.limits
            return await read_json(request, limits.max_body_bytes, dict, within_seconds=limits.max_body_seconds)

        async def leave(request: Request) -> Response:
            event = checked(EventRequest, await body(request))
            store, (rollout_id, attempt_id) = self._known(), await self._attempt(**request.path_params)
            number = await _asked(store.get_next_span_sequence_id(rollout_id, attempt_id))
            await _asked(store.add_span(event_span(event, rollout_id, attempt_id, number)))
            named = {"rollout_id": rollout_id, "attempt_id": request.path_params["attempt_id"]}
            return json_response({**event.model_dump(), **named, "timestamp": time.time()})

        async def events(request: Request) -> Response:
            store, rollout_id = self._known(), request.path_params["rollout_id"]
            _, attempt_id = await self._attempt(rollout_id, _LATEST)
            found = events_of(await _asked(store.query_spans(rollout_id, attempt_id)))
            kind = request.query_params.get("event_type")
            found = [event for event in found if kind is None or event["event_type"] == kind]
            told = trimmed(found) if request.query_params.get("format") == "triplet" else found
            return Response(encode(told), media_type="application/json")

        async def rollout(request: Request) -> Response:
            found = await self._rollout(request.path_params["rollout_id"])
            attempts = await _asked(self._known().query_attempts(found.rollout_id))
            names = [attempt.attempt_id for attempt in attempts]
            return json_response({"rollout": _told(found, names[-1] if names else None), "attempts": names})

        async def pause(request: Request) -> Response:
            asked = checked(PauseRequest, await body(request))
            self._pause = _Pause(True, asked.retry_after_seconds, asked.reason)
            return state_now()

        async def resume(request: Request) -> Response:
            self._pause = _Pause(False, self._pause.retry_after_seconds)
            return state_now()

        async def state(request: Request) -> Response:
            return state_now()

        def state_now() -> Response:
            inflight = max(0, self._admission.active - self._admission.waiting - 1)
            return json_response({**vars(self._pause), "inflight": inflight})

        served: list[tuple[str, str, Endpoint]] = [
            ("POST", "/api/rollouts/{rollout_id}/attempt/{attempt_id}/events", leave),
            ("GET", "/api/rollouts/{rollout_id}/events", events),
            ("GET", "/api/rollouts/{rollout_id}", rollout),
            ("POST", "/proxy/pause", pause),
            ("POST", "/proxy/resume", resume),
            ("GET", "/proxy/state", state),
        ]
        for method, path, endpoint in served:
            admitted = AdmittedEndpoint("rollouts", endpoint, self._admission, metrics, openai_response)
            app.router.routes.append(Route(path, admitted, methods=[method]))

    def _known(self) -> LightningStore:
        if self._store is None:
            raise NotFoundError("this server records no rollouts: start it with a store", code="no_store")
        return self._store

    async def _rollout(self, rollout_id: str) -> Rollout:
        found = await _asked(self._known().get_rollout_by_id(rollout_id))
        if found is None:
            raise NotFoundError(f"there is no rollout {rollout_id!r}", code="rollout_not_found")
        return found

    async def _attempt(self, rollout_id: str, attempt_id: str) -> tuple[str, str]:
        if attempt_id != _LATEST:
            return rollout_id, attempt_id
        latest = await _asked(self._known().get_latest_attempt(rollout_id))
        if latest is None:
            raise NotFoundError(f"rollout {rollout_id!r} has no attempt yet", code="rollout_not_found")
        return rollout_id, latest.attempt_id

    async def _temperature(self, rollout_id: str) -> float | None:
        """Return the temperature of the rollout's model, as its resources have it; None where they do not say."""
        if rollout_id in self._temperatures:
            return self._temperatures[rollout_id]
        rollout, store = await self._rollout(rollout_id), self._known()
        wanted = rollout.resources_id
        update = await _asked(store.get_latest_resources() if wanted is None else store.get_resources_by_id(wanted))
        models = [found for found in ({} if update is None else update.resources).values() if isinstance(found, LLM)]
        said = [model.sampling_parameters.get("temperature") for model in models]
        self._temperatures[rollout_id] = next((value for value in said if value is not None), None)
        if len(self._temperatures) > _REMEMBERED:
            self._temperatures.popitem(last=False)
        return self._temperatures[rollout_id]


def _told(rollout: Rollout, attempt_id: str | None) -> dict[str, Any]:
    status = _STATES.get(rollout.status, rollout.status)
    times = {"created_at": rollout.start_time, "updated_at": rollout.end_time or rollout.start_time}
    return {
        "rollout_id": rollout.rollout_id,
        "input": rollout.input,
        "is_train": rollout.mode in (None, "train"),
        "metadata": rollout.metadata,
        "status": {"state": status, "last_attempt_id": attempt_id, **times},
    }


async def _asked(work: Awaitable[T]) -> T:
    """Return what the store answers.

    Raises:
        NotFoundError: it knows no such rollout or attempt.
        RecordingError: it failed.
    """
    try:
        return await work
    except ValueError as error:
        raise NotFoundError(str(error), code="rollout_not_found") from error
    except Exception as error:  # any store may stand behind the contract; the agent must learn of it
        log_failure(logger, error, "the store of rollouts failed")
        raise RecordingError(f"the store of rollouts failed: {error}", code="recording_failed") from error
