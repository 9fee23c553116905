"""The kinds of questions: ways of asking in two languages, and the gold query. They are kept in `templates.toml`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Template:
    """One kind of question; `templates.toml` describes the fields."""

    name: str
    level: int
    takes: tuple[str, ...]
    english: tuple[str, ...]
    chinese: tuple[str, ...]
    sql: str
    held_out: bool = False
    ordered: bool = False


_TABLES: Final = tomllib.loads(files(__package__).joinpath("templates.toml").read_text(encoding="utf-8"))
TEMPLATES: Final = tuple(
    Template(name, **{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()})
    for name, table in _TABLES.items()
)
