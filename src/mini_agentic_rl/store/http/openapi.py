"""The OpenAPI document of the store server, made from the table of routes."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, TypeAdapter

from ...http import SCHEMA_REFERENCE, document, json_content
from ..base import LightningStore
from . import wire
from .route import Route

_TEXT: Final = {"type": "string"}


class Failure(BaseModel):
    """A request that could not be carried out."""

    detail: str
    """The fault, for a person."""
    error_type: str
    """`ValueError` and `LightningStoreError` are errors of the store contract."""


def store_document(max_body_bytes: int) -> dict[str, Any]:
    """Return the document, as OpenAPI 3.1.

    Args:
        max_body_bytes: Largest body of a request, which the document tells.
    """
    adapters: list[tuple[str, Any, TypeAdapter[Any]]] = [("failure", "serialization", TypeAdapter(Failure))]
    for route in wire.ROUTES:
        name = f"{route.method} {route.path}"
        if route.body is not None:
            adapters.append((f"{name} request", "validation", route.whole_body))
        elif route.request is not None:
            adapters.append((f"{name} request", "validation", TypeAdapter(route.request)))
        adapters.append((f"{name} result", "validation", route.result))
    schemas, definitions = TypeAdapter.json_schemas(adapters, ref_template=SCHEMA_REFERENCE)
    by_name = {name: schema for (name, _), schema in schemas.items()}
    shared = definitions.get("$defs", {})

    paths: dict[str, dict[str, Any]] = {
        wire.HEALTH: {
            "get": {"operationId": "health", "responses": {"200": json_content({"type": "object"}, "It serves.")}}
        },
        wire.TRACES: {"post": _traces(max_body_bytes)},
    }
    for route in wire.ROUTES:
        name = f"{route.method} {route.path}"
        operation = _operation(route, by_name.get(f"{name} request"), by_name[f"{name} result"], shared)
        operation["responses"] |= {
            "4XX": json_content(by_name["failure"], "The request is wrong; the detail says how."),
            "503": json_content(by_name["failure"], "The store cannot serve now."),
        }
        paths.setdefault(f"{wire.PREFIX}/{route.path}", {})[route.method.lower()] = operation
    return document(
        "mini-agentic-rl store",
        "1",
        f"Bodies are JSON, plain or with gzip, of at most {max_body_bytes} bytes.",
        paths,
        shared,
    )


def _operation(
    route: Route, request: dict[str, Any] | None, result: dict[str, Any], shared: dict[str, Any]
) -> dict[str, Any]:
    told = (getattr(LightningStore, route.call).__doc__ or "").partition("\n")[0]
    operation: dict[str, Any] = {
        "operationId": f"{route.call}_{route.method.lower()}",
        "summary": told,
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": _TEXT}
            for name in (part[1:-1] for part in route.parts if part.startswith("{"))
        ],
        "responses": {str(route.status): json_content(result, "Done.")},
    }
    if route.changes:
        operation["parameters"].append({"name": "Idempotency-Key", "in": "header", "required": False, "schema": _TEXT})
    if request is not None and route.method == "POST":
        needed = route.body is not None or bool(_fields(request, shared).get("required"))
        operation["requestBody"] = {"required": needed, "content": {"application/json": {"schema": request}}}
    elif request is not None:
        fields = _fields(request, shared)
        required = fields.get("required", [])
        operation["parameters"] += [
            {"name": name, "in": "query", "required": name in required, "schema": schema}
            for name, schema in fields["properties"].items()
        ]
    return operation


def _fields(schema: dict[str, Any], shared: dict[str, Any]) -> dict[str, Any]:
    """Return the schema itself, where it only names a shared one."""
    named = schema.get("$ref", "").removeprefix(SCHEMA_REFERENCE.format(model=""))
    return shared[named] if named else schema


def _traces(max_body_bytes: int) -> dict[str, Any]:
    binary = {"content": {"application/x-protobuf": {"schema": {"type": "string", "format": "binary"}}}}
    return {
        "operationId": "export_traces",
        "summary": f"OTLP/HTTP: an ExportTraceServiceRequest of at most {max_body_bytes} bytes, plain or with gzip.",
        "requestBody": {"required": True, **binary},
        "responses": {
            "200": {"description": "An ExportTraceServiceResponse; it tells which spans were refused.", **binary},
            "4XX": {"description": "A google.rpc.Status.", **binary},
            "503": {"description": "A google.rpc.Status; send it again later.", **binary},
        },
    }
