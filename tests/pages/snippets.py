"""The Python blocks of README and docs/, what tests claim of them, and running them.

A test names the block that it is about with `python_block(page, part)` and runs it with `Block.run`. Every block has to
be named by a test: see `test_every_block_has_a_claim.py`.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

CLAIMED: list[Block] = []
"""What `python_block` was asked for, in all modules that have been imported."""


def page_names() -> list[str]:
    """Return README and every page of docs/, by their paths from the root; Chinese pages hold the blocks of these."""
    found = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    return ["README.md", *(path for path in found if not path.endswith(".zh.md"))]


def fenced_blocks(page: str, language: str) -> list[tuple[int, str]]:
    """Return the blocks of a page that are marked with a language: the line of each, from 1, and its text."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, found.start()) + 1, found[2])
        for found in re.finditer(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        if found[1] == language
    ]


def python_block(page: str, part: str) -> Block:
    """Return the only Python block of a page that holds `part`, and note that a test claims something of it."""
    block = Block(page, part)
    CLAIMED.append(block)
    return block


@dataclass
class Ran:
    """What came of a block: what it printed, the names it defined, and the values of its lines that are expressions."""

    printed: str = ""
    names: dict[str, Any] = field(default_factory=dict)
    values: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Block:
    """One Python block of a page, found by its page and a text that no other block of the page holds."""

    page: str
    part: str

    @property
    def line(self) -> int:
        """The line of the page that the block begins on."""
        return self._found()[0]

    @property
    def text(self) -> str:
        """The block as it stands in the page."""
        return self._found()[1]

    def _found(self) -> tuple[int, str]:
        found = [block for block in fenced_blocks(self.page, "python") if self.part in block[1]]
        assert len(found) == 1, (
            f"{self.page}: {len(found)} Python blocks hold {self.part!r}; a test is about one of them"
        )
        return found[0]

    def changed(self, replace: Mapping[str, str]) -> str:
        """Return the block with these texts replaced, each of which it has to hold."""
        text = self.text
        for old, new in replace.items():
            assert old in text, f"{self.page}:{self.line}: a test replaces {old!r}, which is not there"
            text = text.replace(old, new)
        return text

    def run(
        self, replace: Mapping[str, str] | None = None, *, before: str = "", given: Mapping[str, Any] | None = None
    ) -> Ran:
        """Run the block in this process, as a script of its own.

        A comment behind an expression that is a Python value, such as `# [1.2]`, has to be what the expression gives.

        Args:
            replace: texts of the block to what stands for them: small sizes, addresses of servers that are there.
            before: code that the page leaves to the reader, such as imports.
            given: names that the block may use.

        Raises:
            AssertionError: the block is not there, or a value is not the one in its comment.
        """
        ran = Ran(names={"__name__": "page", **(given or {})})
        source = f"{before}\n" + self.changed(replace or {})
        said = _values_in_comments(source)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            for statement in ast.parse(source).body:
                if not isinstance(statement, ast.Expr):
                    exec(compile(ast.Module([statement], []), self.page, "exec"), ran.names)
                    continue
                value = eval(compile(ast.Expression(statement.value), self.page, "eval"), ran.names)
                ran.values.append(value)
                if statement.end_lineno in said:
                    expected = said[statement.end_lineno]
                    assert value == pytest.approx(expected), f"{self.page}:{self.line}: says {expected}, gives {value}"
        ran.printed = out.getvalue()
        return ran


def _values_in_comments(source: str) -> dict[int, Any]:
    """Return the comments that are Python values, by their line."""
    return dict(_literals(source))


def _literals(source: str) -> Iterator[tuple[int, Any]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            with contextlib.suppress(ValueError, SyntaxError):
                yield token.start[0], ast.literal_eval(token.string.removeprefix("#").strip())
