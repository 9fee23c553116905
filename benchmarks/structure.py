"""How much a newcomer has to read: sizes, names and boundaries of the package, of one checkout or of two side by side.

    git worktree add ../before 68b3c28
    python benchmarks/structure.py ../before .

Every number is counted in the source as text, without importing it.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from output import deliver, make_parser

PACKAGE = "mini_agentic_rl"


class Checkout:
    """The modules of one checkout, parsed."""

    def __init__(self, root: Path) -> None:
        self.root = root / "src" / PACKAGE
        if not self.root.is_dir():
            raise SystemExit(f"{root} is no checkout: it has no src/{PACKAGE}")
        paths = sorted([*self.root.rglob("*.py"), *self.root.rglob("*.pyi")])
        self.lines = {path: path.read_text(encoding="utf-8").count("\n") for path in paths}
        self.trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}

    def room(self, path: Path) -> str:
        """Return the name of the package directly below the root, or of the module."""
        return path.relative_to(self.root).parts[0].removesuffix(".py")

    def rooms(self) -> dict[str, dict[str, int]]:
        """Return the number of files and lines of each room."""
        files: Counter[str] = Counter(self.room(path) for path in self.lines)
        lines: Counter[str] = Counter()
        for path, count in self.lines.items():
            lines[self.room(path)] += count
        return {room: {"files": files[room], "lines": lines[room]} for room in sorted(files)}

    def measures(self) -> dict[str, int]:
        """Return every measure by its name."""
        first_words = Counter(text.split()[0].rstrip(",.:") for text in self._docstrings() if text.split())
        classes = Counter(name for _, name in self._public_classes())
        return {
            "files": len(self.lines),
            "lines": sum(self.lines.values()),
            "files over 300 lines": sum(count > 300 for count in self.lines.values()),
            "files over 400 lines": sum(count > 400 for count in self.lines.values()),
            "files under 40 lines, but for __init__": sum(
                count < 40 and path.stem != "__init__" for path, count in self.lines.items()
            ),
            "settings declared in several classes": sum(len(found) > 1 for found in self._fields().values()),
            "imports of other rooms past a face": sum(1 for _ in self._past_a_face()),
            'docstrings that begin "What"': first_words["What"],
            'docstrings that begin "Whether"': first_words["Whether"],
            "public class names defined several times": sum(count > 1 for count in classes.values()),
            "files below the doors that spell an --option": len(set(self._spelled_options())),
            'files that name the loss "gspo"': sum('"gspo"' in path.read_text(encoding="utf-8") for path in self.lines),
        }

    def _docstrings(self) -> Iterator[str]:
        """Yield docstrings of modules, classes and functions, and the strings that stand under fields."""
        for tree in self.trees.values():
            for node in ast.walk(tree):
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                    for statement in node.body:
                        value = statement.value if isinstance(statement, ast.Expr) else None
                        if isinstance(value, ast.Constant) and isinstance(value.value, str):
                            yield value.value

    def _public_classes(self) -> Iterator[tuple[Path, str]]:
        for path, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    yield path, node.name

    def _fields(self) -> dict[str, set[str]]:
        """Return for each field of a settings class the classes that declare it."""
        bases = {
            node.name: [ast.unparse(base).split(".")[-1] for base in node.bases]
            for tree in self.trees.values()
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
        }

        def is_settings(name: str, seen: frozenset[str] = frozenset()) -> bool:
            return name == "Settings" or any(
                is_settings(base, seen | {name}) for base in bases.get(name, []) if base not in seen
            )

        found: dict[str, set[str]] = defaultdict(set)
        for path, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef) and is_settings(node.name):
                    for statement in node.body:
                        if isinstance(statement, ast.AnnAssign) and "ClassVar" not in ast.unparse(statement.annotation):
                            found[ast.unparse(statement.target)].add(f"{path}:{node.name}")
        return found

    def _past_a_face(self) -> Iterator[tuple[Path, str]]:
        """Yield imports of a module inside another room; packages inside a room have faces of their own."""
        for path, tree in self.trees.items():
            package = [PACKAGE, *path.relative_to(self.root).parts[:-1]]
            for node in ast.walk(tree):
                if not isinstance(node, ast.ImportFrom):
                    continue
                start = package[: len(package) - node.level + 1] if node.level else []
                parts = [*start, *(node.module.split(".") if node.module else [])]
                if len(parts) > 2 and parts[0] == PACKAGE and parts[1] != self.room(path):
                    target = self.root.joinpath(*parts[1:])
                    if not target.is_dir():
                        yield path, ".".join(parts)

    def _spelled_options(self) -> Iterator[Path]:
        """Yield files outside the command line with a string that spells an option of it."""
        for path, tree in self.trees.items():
            if self.room(path) in ("cli", "commands", "__main__"):
                continue
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    words = node.value.replace("`", " ").replace("(", " ").replace("'", " ").split()
                    if any(word.startswith("--") and word[2:3].isalpha() for word in words):
                        yield path


def report(console: Console, result: Any) -> None:
    """Print a table of measures and one of rooms, with a column for each checkout."""
    measures = Table("measure", *result)
    for name in next(iter(result.values()))["measures"]:
        measures.add_row(name, *(f"{found['measures'][name]:,}" for found in result.values()))
    console.print(measures)
    rooms = Table("room", *result)
    for room in sorted(set().union(*(found["rooms"] for found in result.values()))):
        rooms.add_row(room, *(_size(found["rooms"].get(room)) for found in result.values()))
    console.print(rooms)


def _size(room: dict[str, int] | None) -> str:
    return "" if room is None else f"{room['files']} files, {room['lines']:,} lines"


def main() -> None:
    """Read the command line and print."""
    parser = make_parser(__doc__)
    parser.add_argument("roots", nargs="*", type=Path, default=[Path()], help="folders of checkouts; by default this")
    options = parser.parse_args()
    checkouts = {str(root): Checkout(root) for root in options.roots}
    result = {name: {"measures": found.measures(), "rooms": found.rooms()} for name, found in checkouts.items()}
    deliver(options, result, report)


if __name__ == "__main__":
    main()
