"""The caller of a request: its URL says it, or at the plain URL the `baggage` header that clients of an agent send."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from starlette.applications import Starlette
from starlette.requests import Request

from ..attribution import read_baggage
from ..http import Admission, BadRequestError, RequestMetrics
from .dialects import CallScope

_HOW: Final = (
    "Name it: make the call in the task or a thread that the agent has started, ask the rollout's own URL "
    "(llm.get_base_url(rollout_id, attempt_id)), give a process env=rollout_environment(), or run it inside of "
    "`with unrecorded():` if it belongs to no rollout"
)


class UnnamedCallError(BadRequestError):
    """The call may be of any of several rollouts. Status 400: no SDK tries such a request again."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"it is not known which rollout this call belongs to: {reason}. {_HOW}", code="rollout_unnamed"
        )


@dataclass(frozen=True)
class Caller:
    """Identity of whoever makes a call."""

    scope: CallScope = None
    """(rollout id, attempt id) that it belongs to; None outside of any rollout."""
    agent: str | None = None
    """Name of the agent, where the call carries one."""
    traceparent: str | None = None
    """W3C trace context of the request."""


class SessionGate(Protocol):
    """The sessions of agents in use, for a gateway: an optional part (`apps.learning`). Used from one event loop."""

    async def caller(self, request: Request, key: str, caller: Caller) -> Caller:
        """Return who makes a request with an API key: `caller`, in the session that the request's headers name.

        Raises:
            HttpError: a header cannot be read, or the session is that of another key.
        """

    def add_routes(
        self,
        app: Starlette,
        admission: Admission,
        metrics: RequestMetrics,
        forget: Callable[[CallScope, str], None],
    ) -> None:
        """Add the routes of sessions, for admitted requests. `forget` drops what the gateway remembers of an attempt,
        given its scope and the API key."""


def caller_of(request: Request, records: bool) -> Caller:
    """Return who makes a request.

    A rollout that the URL names counts, else that of the `baggage` header, unless the server records none.

    Args:
        request: the request.
        records: whether the server records the calls of rollouts.

    Raises:
        UnnamedCallError: it comes from a process that runs rollouts, and nothing says to which of them it belongs.
        BadRequestError: the header names half of an attempt.
    """
    ids, headers = request.path_params, request.headers
    traceparent = headers.get("traceparent")
    baggage = headers.getlist("baggage")
    if not baggage:
        return Caller((ids["rollout_id"], ids["attempt_id"]) if "rollout_id" in ids else None, None, traceparent)
    named = read_baggage(baggage)
    if "rollout_id" in ids:
        return Caller((ids["rollout_id"], ids["attempt_id"]), named.agent, traceparent)
    if not records:
        return Caller(None, named.agent, traceparent)
    if named.unnamed is not None:
        raise UnnamedCallError(named.unnamed)
    if named.rollout_id is None and named.attempt_id is None:
        return Caller(None, named.agent, traceparent)
    if named.rollout_id is None or named.attempt_id is None:
        raise BadRequestError(
            "baggage: expected both a rollout id and an attempt id, or neither", code="rollout_unnamed"
        )
    return Caller((named.rollout_id, named.attempt_id), named.agent, traceparent)
