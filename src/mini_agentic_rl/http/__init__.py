"""The parts that every server of this project shares; nothing here knows what is served.

`ServerThread` runs an ASGI application in a thread, and `AdmittingServer` puts an `Admission` in front of it: keys,
rate, concurrency, pausing, draining. `read_body`, `json_object` and `checked` read bounded bodies, every failure is an
`HttpError`, `new_app` and `AdmittedEndpoint` turn it into a response in the server's own shape, `RequestMetrics` counts
requests for Prometheus, and `document` puts an OpenAPI document together.

What needs starlette, uvicorn or prometheus_client is loaded when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .access import ApiKeys, is_from_web_page, is_loopback
from .admission import Admission, RequestLimits
from .errors import (
    AuthenticationError,
    BadRequestError,
    BodyTooLargeError,
    DrainingError,
    ForbiddenError,
    HttpError,
    NotServedError,
    OverloadedError,
    UnsupportedEncodingError,
)
from .json_text import MAX_DEPTH, encode, json_object, parse_json

if TYPE_CHECKING:
    from .application import (
        AdmittedEndpoint,
        Endpoint,
        EventStream,
        client_gone,
        disconnected,
        guarded,
        json_response,
        new_app,
        openai_response,
        unless_disconnected,
    )
    from .body import Body, checked, read_body
    from .metrics import CLIENT_CLOSED_REQUEST, METRICS_CONTENT_TYPE, MetricFamily, RequestMetrics, RequestWatch
    from .openapi import SCHEMA_REFERENCE, document, json_content
    from .server import AdmittingServer, ServerStartError, ServerThread

__all__ = [
    "CLIENT_CLOSED_REQUEST",
    "MAX_DEPTH",
    "METRICS_CONTENT_TYPE",
    "SCHEMA_REFERENCE",
    "Admission",
    "AdmittedEndpoint",
    "AdmittingServer",
    "ApiKeys",
    "AuthenticationError",
    "BadRequestError",
    "Body",
    "BodyTooLargeError",
    "DrainingError",
    "Endpoint",
    "EventStream",
    "ForbiddenError",
    "HttpError",
    "MetricFamily",
    "NotServedError",
    "OverloadedError",
    "RequestLimits",
    "RequestMetrics",
    "RequestWatch",
    "ServerStartError",
    "ServerThread",
    "UnsupportedEncodingError",
    "checked",
    "client_gone",
    "disconnected",
    "document",
    "encode",
    "guarded",
    "is_from_web_page",
    "is_loopback",
    "json_content",
    "json_object",
    "json_response",
    "new_app",
    "openai_response",
    "parse_json",
    "read_body",
    "unless_disconnected",
]

_LATER = {
    "application": (
        "AdmittedEndpoint",
        "Endpoint",
        "EventStream",
        "client_gone",
        "disconnected",
        "guarded",
        "json_response",
        "new_app",
        "openai_response",
        "unless_disconnected",
    ),
    "body": ("Body", "checked", "read_body"),
    "metrics": ("CLIENT_CLOSED_REQUEST", "METRICS_CONTENT_TYPE", "MetricFamily", "RequestMetrics", "RequestWatch"),
    "openapi": ("SCHEMA_REFERENCE", "document", "json_content"),
    "server": ("AdmittingServer", "ServerStartError", "ServerThread"),
}
_HOME = {name: module for module, names in _LATER.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
