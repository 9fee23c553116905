"""The pages of the documentation: their places in the repository, and on the site."""

from __future__ import annotations

import posixpath
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

AT_THE_ROOT = {
    "README.md": "index.md",
    "README.zh-CN.md": "index.zh.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/RESULTS.md": "results.md",
    "dev/LOG.md": "log.md",
}
"""Pages outside of docs/, and where they stand on the site."""

CHINESE = ".zh.md"
"""The end of the name of a Chinese page, which stands beside the English one."""


def pages() -> dict[str, str]:
    """Return the place on the site of every page, by its path from the root of the repository."""
    found = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    return AT_THE_ROOT | {path: path.removeprefix("docs/") for path in sorted(found)}


def text_of(page: str) -> str:
    """Return a page of the repository."""
    return (ROOT / page).read_text(encoding="utf-8")


def resolved(page: str, target: str) -> tuple[str, str]:
    """Return the path from the root, and the anchor, that a link of a page leads to."""
    path, _, anchor = target.partition("#")
    return (posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page), anchor


def on_the_site(page: str, target: str, places: dict[str, str]) -> str:
    """Return the target of a link of a page as it has to be on the site.

    What is no page there, such as an example or the licence, is under `files/`, by its path in the repository.
    """
    path, anchor = resolved(page, target)
    place = places.get(path)
    if place is None:
        place = path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}"
    here = posixpath.dirname(places[page])
    relative = posixpath.relpath(place, here or ".") if target.partition("#")[0] else ""
    return f"{relative}#{anchor}" if anchor else relative
