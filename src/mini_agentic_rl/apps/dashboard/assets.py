"""The built page: one HTML file, its script and its style, and the headers that let it run nothing else.

The page itself says nothing of what a store holds, so that no key is asked for it; its script asks for one, and sends
it with every request. Transcripts are hostile input: the page only makes text of them, and the policy below forbids any
script, style, frame or request but its own.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...http import Endpoint

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
_FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/dashboard/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/dashboard/app.css": ("app.css", "text/css; charset=utf-8"),
    "/dashboard/icon.svg": ("icon.svg", "image/svg+xml"),
}
PATHS: Final = frozenset(_FILES)
"""Paths that are served without a key."""


def asset_routes() -> list[Route]:
    """Return the routes of the files."""
    return [Route(path, _serving(name, kind), methods=["GET"]) for path, (name, kind) in _FILES.items()]


def _serving(name: str, kind: str) -> Endpoint:
    async def serve(request: Request) -> Response:
        return Response(_content(name), headers=HEADERS, media_type=kind)

    return serve


@cache
def _content(name: str) -> bytes:
    return (resources.files(__package__) / "static" / name).read_bytes()
