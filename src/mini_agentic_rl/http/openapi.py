"""OpenAPI 3.1 documents, put together from what a server knows of its routes."""

from __future__ import annotations

from typing import Any, Final

SCHEMA_REFERENCE: Final = "#/components/schemas/{model}"
"""Place of pydantic's schemas in a document, as its `ref_template`."""


def document(
    title: str, version: str, description: str, paths: dict[str, dict[str, Any]], schemas: dict[str, Any]
) -> dict[str, Any]:
    """Return the document of a server that takes a bearer token, or none.

    Args:
        paths: operations by path and lower-case method.
        schemas: those that `paths` refers to.
    """
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version, "description": description},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{"key": []}, {}],
    }


def json_content(schema: dict[str, Any], description: str) -> dict[str, Any]:
    """Return a response of JSON."""
    return {"description": description, "content": {"application/json": {"schema": schema}}}
