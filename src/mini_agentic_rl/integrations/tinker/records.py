"""The routes of the Tinker API that look things up: models, training runs, checkpoints, sessions."""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...http import BadRequestError, checked, json_response
from .checkpoints import SCHEME, ClientRun, SavedCheckpoint
from .errors import RefusedError
from .routes import TinkerRoutes
from .sessions import UnknownClientError
from .wire.bodies import LifetimeBody, PathBody

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
