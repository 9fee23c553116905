"""The page that a server shows to a browser: what it is, and what can be asked of it. It loads nothing else."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from starlette.routing import BaseRoute, Route

PAGES = ("/", "/docs")
"""Paths of the page. It says nothing of what the server holds, so that no key is asked for it."""


class WebPages(NamedTuple):
    """Pages that a server shows in place of its own at `/`, and what they ask of it."""

    routes: Sequence[BaseRoute]
    open_paths: Collection[str]
    """Paths of those that are served without a key."""


class Served(NamedTuple):
    """One line of the page."""

    method: str
    path: str
    about: str = ""


def served_by(routes: Sequence[BaseRoute]) -> list[Served]:
    """Return what routes serve; those under the URL of one attempt repeat the others, and are left out."""
    found = []
    for route in routes:
        if isinstance(route, Route) and route.path not in PAGES and not route.path.startswith("/rollout/"):
            methods = sorted((route.methods or {"POST"}) - {"HEAD"})
            found += [Served(method, route.path.replace(":path}", "}")) for method in methods]
    return found


def described_by(document: Mapping[str, Any]) -> list[Served]:
    """Return what an OpenAPI document describes."""
    return [
        Served(method.upper(), path, str(operation.get("summary") or operation.get("description") or ""))
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]


def html(title: str, about: str, served: Iterable[Served]) -> str:
    """Return the page.

    Args:
        title: name of the server.
        about: how it is used, in one paragraph.
        served: a line each.
    """
    rows = "".join(
        f"<tr><td><code>{escape(one.method)}</code></td><td><code>{escape(one.path)}</code></td>"
        f"<td>{escape(one.about)}</td></tr>\n"
        for one in dict.fromkeys(served)
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n<p>{escape(about)}</p>\n<table>\n{rows}</table>\n</body>\n</html>\n"
    )


_STYLE = (
    ":root { color-scheme: light dark; } body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; "
    "max-width: 60em; padding: 0 1em; } td { padding: 2px 14px 2px 0; vertical-align: top; }"
)
