"""The store contract over HTTP, written out once: which request stands for which method of `LightningStore`.

The server serves `ROUTES` and the client sends them. JSON is written and read as Python's own module does it:
infinities and NaN stand in it as such. A failure is a status of 400 or above and
`{"detail": text, "error_type": name}`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from urllib.parse import unquote

from .route import Route

PREFIX: Final = "/v1/agl"
HEALTH: Final = f"{PREFIX}/health"
TRACES: Final = "/v1/traces"
METRICS: Final = "/metrics"
KEY_HEADER: Final = "idempotency-key"
"""A request that changes something carries a key of its own; sent again with the same key, it gets the same answer."""

ROUTES: Final = (
    Route("GET", "statistics", "statistics"),
    Route("POST", "queues/rollouts/enqueue", "enqueue_many_rollouts", status=201, changes=True),
    Route("POST", "queues/rollouts/dequeue", "dequeue_many_rollouts", changes=True),
    Route("POST", "rollouts", "start_rollout", status=201, changes=True),
    Route("POST", "rollouts/search", "query_rollouts"),
    Route("GET", "rollouts", "query_rollouts"),
    Route("POST", "rollouts/delete", "delete_rollouts", changes=True),
    Route("POST", "walks/rollouts", "walk_rollouts"),
    Route("GET", "rollouts/{rollout_id}", "get_rollout_by_id"),
    Route("POST", "rollouts/{rollout_id}", "update_rollout", changes=True),
    Route("POST", "rollouts/{rollout_id}/attempts", "start_attempt", status=201, changes=True),
    Route("POST", "rollouts/{rollout_id}/attempts/search", "query_attempts"),
    Route("GET", "rollouts/{rollout_id}/attempts", "query_attempts"),
    Route("GET", "rollouts/{rollout_id}/attempts/latest", "get_latest_attempt"),
    Route("POST", "rollouts/{rollout_id}/attempts/{attempt_id}", "update_attempt", changes=True),
    Route("POST", "workers/search", "query_workers"),
    Route("GET", "workers", "query_workers"),
    Route("GET", "workers/{worker_id}", "get_worker_by_id"),
    Route("POST", "workers/{worker_id}", "update_worker", changes=True),
    Route("POST", "heartbeats", "update_many_workers", changes=True, body="heartbeats"),
    Route("POST", "resources", "add_resources", status=201, changes=True, body="resources"),
    Route("GET", "resources", "query_resources"),
    Route("GET", "resources/latest", "get_latest_resources"),
    Route("GET", "resources/{resources_id}", "get_resources_by_id"),
    Route("POST", "resources/{resources_id}", "update_resources", changes=True, body="resources"),
    Route("POST", "spans", "add_span", status=201, changes=True, body="span"),
    Route("POST", "spans/batch", "add_many_spans", status=201, changes=True, answer="positions"),
    Route("POST", "spans/search", "query_spans"),
    Route("GET", "spans", "query_spans"),
    Route("POST", "spans/rewards", "get_reward_spans"),
    Route("POST", "spans/next", "get_next_span_sequence_id", changes=True, answer="sequence_id"),
    Route("POST", "spans/next/batch", "get_many_span_sequence_ids", changes=True),
    Route("POST", "waits/rollouts", "wait_for_rollouts", waits=True),
    Route("POST", "waits/work", "wait_for_work", waits=True),
)
"""Of two routes that fit one path, the first counts. A client sends the first route of a method. `spans/batch`,
`spans/rewards`, `spans/next/batch`, `rollouts/delete`, `walks/rollouts`, `heartbeats` and `waits/work` are our own;
the others are agent-lightning's."""


def route_of(call: str) -> Route:
    """Return the route by which a client calls a method."""
    return next(route for route in ROUTES if route.call == call)


def find(method: str, path: str) -> tuple[Route, dict[str, str]] | None:
    """Return the route of a request and its ids; `path` is below `PREFIX`, with its percent escapes."""
    parts = path.split("/")
    for route in _candidates(method, len(parts)):
        ids: dict[str, str] = {}
        for wanted, part in zip(route.parts, parts, strict=True):
            if wanted.startswith("{"):
                ids[wanted[1:-1]] = unquote(part)
            elif wanted != part:
                break
        else:
            return route, ids
    return None


@lru_cache
def _candidates(method: str, parts: int) -> tuple[Route, ...]:
    return tuple(route for route in ROUTES if route.method == method and len(route.parts) == parts)
