"""Words: docstrings that begin with what a thing is or does, class names that mean one thing, and floors as drawn."""

from __future__ import annotations

import ast
import configparser
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
QUESTIONS = {"What", "Whether", "How", "Which", "Where", "When", "Why", "Who", "Whose"}
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Defined(NamedTuple):
    """A module, a class or a function of the package."""

    place: str
    class_name: str | None
    docstrings: list[tuple[int, str]]
    """Its own and those of its fields, with their lines."""


@cache
def _definitions() -> list[Defined]:
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | Definition):
                name = node.name if isinstance(node, ast.ClassDef) else None
                docstrings = [(getattr(node, "lineno", 1), ast.get_docstring(node) or ""), *_fields(node)]
                found.append(Defined(str(path.relative_to(ROOT)), name, docstrings))
    return found


def _fields(node: ast.Module | Definition) -> Iterator[tuple[int, str]]:
    """Yield the text under each name that a body gives a value or a type, with its line."""
    for name, text in pairwise(node.body):
        if not isinstance(name, ast.Assign | ast.AnnAssign) or not isinstance(text, ast.Expr):
            continue
        if isinstance(text.value, ast.Constant) and isinstance(text.value.value, str):
            yield text.lineno, text.value.value


def test_no_docstring_begins_with_a_question():
    found = [
        f"{one.place}:{line}: {text.partition(chr(10))[0]}"
        for one in _definitions()
        for line, text in one.docstrings
        if text.split(maxsplit=1)[:1] and text.split(maxsplit=1)[0] in QUESTIONS
    ]
    assert found == []


def test_a_class_name_means_one_thing():
    places: dict[str, list[str]] = defaultdict(list)
    for one in _definitions():
        if one.class_name is not None:
            places[one.class_name].append(f"{one.place}:{one.docstrings[0][0]}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_the_architecture_page_has_every_room_on_its_floor():
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter", encoding="utf-8")
    layers = contracts["importlinter:contract:floors"]["layers"].split("\n")
    checked = [set(re.findall(r"\w+", layer)) - {"__main__"} for layer in reversed(layers)]
    drawn: dict[int, set[str]] = defaultdict(set)
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    for floor, rooms in re.findall(r"^\| (\d+) \|(.*?)\|", text, re.MULTILINE):
        drawn[int(floor)] |= set(re.findall(r"`(\w+)(?:/|\.py)`", rooms))
    assert [drawn[floor] for floor in sorted(drawn)] == [rooms for rooms in checked if rooms]


def test_a_room_that_tells_its_way_through_its_files_names_each_of_them():
    toured = {}
    for face in sorted((ROOT / "src").rglob("__init__.py")):
        told = ast.get_docstring(ast.parse(face.read_text(encoding="utf-8"))) or ""
        if re.search(r"^Follow .*:$", told, re.MULTILINE):
            files = {path.name for path in face.parent.glob("*.py")} - {"__init__.py"}
            named = set(re.findall(r"(?<![\w/])\w+\.py", told))
            toured[face.parent.name] = files ^ named
    assert {"loop", "policy", "store"} <= toured.keys()
    assert {room: unnamed for room, unnamed in toured.items() if unnamed} == {}
