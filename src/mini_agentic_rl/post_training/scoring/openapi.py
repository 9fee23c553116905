"""The OpenAPI document of the reward service, made from its requests and answers."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from ...http import SCHEMA_REFERENCE, document, json_content
from .requests import (
    PairAnswer,
    PairBatchAnswer,
    PairBatchRequest,
    PairRequest,
    ScoreAnswer,
    ScoreBatchAnswer,
    ScoreBatchRequest,
    ScoreRequest,
)

_QUESTION: Final = "What is 7 x 6?"
_TEXT: Final = {"prompt": _QUESTION, "response": "7 x 6 = 42."}
_CONVERSATION: Final = {
    "messages": [{"role": "user", "content": _QUESTION}, {"role": "assistant", "content": "7 x 6 = 42."}]
}
_PAIR: Final = {"prompt": _QUESTION, "response_a": "7 x 6 = 42.", "response_b": "About forty."}
_ROW: Final = {"prompt": _QUESTION, "chosen": "7 x 6 = 42.", "rejected": "About forty."}

OPERATIONS: Final[dict[str, tuple[str, type[BaseModel], type[BaseModel], dict[str, Any]]]] = {
    "/score": ("Score one text.", ScoreRequest, ScoreAnswer, {"prompt": _TEXT, "messages": _CONVERSATION}),
    "/score-pair": ("Compare two answers to one prompt.", PairRequest, PairAnswer, {"pair": _PAIR, "row": _ROW}),
    "/score/batch": (
        "Score many texts; those that begin alike are computed together.",
        ScoreBatchRequest,
        ScoreBatchAnswer,
        {"batch": {"items": [_TEXT, {**_TEXT, "response": "About forty."}]}},
    ),
    "/score-pair/batch": ("Compare many pairs.", PairBatchRequest, PairBatchAnswer, {"batch": {"items": [_PAIR]}}),
}
"""By path: what it does, what it takes and gives, and examples of what it takes."""

_FAILURE: Final = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            "required": ["message", "type"],
        }
    },
    "required": ["error"],
}
_REFUSALS: Final = {
    "400": "The request is wrong; `param` names the field.",
    "401": "The API key is missing or wrong.",
    "413": "The body is too large.",
    "429": "Too much waits already; `Retry-After` says when to come again.",
    "503": "The server is stopping.",
}


def service_document(version: str, model: str, max_body_bytes: int, max_items: int) -> dict[str, Any]:
    """Return the document, as OpenAPI 3.1."""
    pairs: list[Any] = []
    for _, request, answer, _ in OPERATIONS.values():
        pairs += [(request, "validation"), (answer, "serialization")]
    schemas, definitions = models_json_schema(pairs, ref_template=SCHEMA_REFERENCE)
    names = {kind: schema["$ref"] for (kind, _), schema in schemas.items()}
    paths: dict[str, Any] = {
        "/health": {"get": _read("health", "Whether it serves, which model, and how much waits.", "application/json")},
        "/metrics": {"get": _read("metrics", "Figures for Prometheus.", "text/plain")},
    }
    failure = {"$ref": SCHEMA_REFERENCE.format(model="Failure")}
    for path, (told, request, answer, examples) in OPERATIONS.items():
        content = {"schema": {"$ref": names[request]}, "examples": {k: {"value": v} for k, v in examples.items()}}
        paths[path] = {
            "post": {
                "operationId": path.strip("/").replace("/", "_").replace("-", "_"),
                "summary": told,
                "requestBody": {"required": True, "content": {"application/json": content}},
                "responses": {
                    "200": json_content({"$ref": names[answer]}, "Done."),
                    **{status: json_content(failure, text) for status, text in _REFUSALS.items()},
                },
            }
        }
    return document(
        "mini-agentic-rl reward service",
        version,
        f"Scores of {model}. At most {max_items} items and {max_body_bytes} bytes in one request.",
        paths,
        {**definitions.get("$defs", {}), "Failure": _FAILURE},
    )


def _read(name: str, told: str, media: str) -> dict[str, Any]:
    schema = {"type": "object"} if media == "application/json" else {"type": "string"}
    return {
        "operationId": name,
        "summary": told,
        "security": [],
        "responses": {"200": {"description": "So it is.", "content": {media: {"schema": schema}}}},
    }
