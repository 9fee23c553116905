"""Pages of the public names: one for each room that `mini_agentic_rl` takes names from, with a directive for each name.

The names stand in `mini_agentic_rl/__init__.pyi`; mkdocstrings writes out their signatures and docstrings when the site
is built.
"""

from __future__ import annotations

import ast
from collections import defaultdict

import mini_agentic_rl

from .sources import ROOT

_STUB = ROOT / "src/mini_agentic_rl/__init__.pyi"


def rooms() -> dict[str, list[str]]:
    """Return the public names by the room that they come from.

    Raises:
        ValueError: the stub names other things than the package offers.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for node in ast.parse(_STUB.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found[node.module.partition(".")[0]] += [name.name for name in node.names]
    named = {name for names in found.values() for name in names}
    if named != set(mini_agentic_rl.__all__):
        raise ValueError(f"__init__.pyi and __all__ differ in {sorted(named ^ set(mini_agentic_rl.__all__))}")
    return dict(found)


def api_pages() -> dict[str, str]:
    """Return the text of each page by its place below `reference/`."""
    pages = {}
    for room, names in rooms().items():
        lines = [f"# {room}", "", f"Names of `mini_agentic_rl.{room}` that `mini_agentic_rl` exports."]
        for name in sorted(names, key=str.lower):
            lines += ["", f"## {name}", "", *_entry(name)]
        pages[f"api/{room}.md"] = "\n".join(lines) + "\n"
    listed = [f"- [{room}]({room}.md): {', '.join(f'`{name}`' for name in names)}" for room, names in rooms().items()]
    head = ["# Public names", "", "All names that `mini_agentic_rl` exports, by package.", ""]
    pages["api/index.md"] = "\n".join([*head, *listed]) + "\n"
    return pages


def _entry(name: str) -> list[str]:
    """Return the directive of a class or a function; of a type alias its text, since it has no docstring of its own."""
    value = getattr(mini_agentic_rl, name)
    module, qualified = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
    if not module.startswith("mini_agentic_rl.") or not qualified:
        return [f"```text\n{name} = {value}\n```"]
    if "<locals>" in qualified:  # made by a function, and kept under its public name
        qualified = name
    return [f"::: {module}.{qualified}", "    options:", "      show_root_heading: false"]
