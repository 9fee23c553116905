"""The Python blocks of README and docs/, what tests claim of them, and running them.

A test names the block that it is about with `python_block(page, part)` and runs it with `Block.run`. Every block has to
be named by a test: see `test_command_lines.py`.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mini_agentic_rl.policy import load_model

ROOT = Path(__file__).resolve().parents[2]

CLAIMED: list[Block] = []
"""The blocks of `python_block` in all modules that have been imported."""


def page_names() -> list[str]:
    """Return README and every page of docs/, by their paths from the root; Chinese pages hold the blocks of these."""
    paths = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    return ["README.md", *(path for path in paths if not path.endswith(".zh.md"))]


def fenced_blocks(page: str, language: str) -> list[tuple[int, str]]:
    """Return the blocks of a page that are marked with a language: the line of each, from 1, and its text."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, match.start()) + 1, match[2])
        for match in re.finditer(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        if match[1] == language
    ]


def python_block(page: str, part: str) -> Block:
    """Return the only Python block of a page that holds `part`, and note that a test claims something of it."""
    block = Block(page, part)
    CLAIMED.append(block)
    return block


def complete_run(folder: Path) -> dict[str, Any]:
    """Return the summary of a run of one step that left all files a page may name.

    Raises:
        AssertionError: a file is missing, or there was not one step between the first measurement and the last.
    """
    for name in ("config.json", "metrics.jsonl", "report.html", "rollouts.db"):
        assert (folder / name).is_file(), name
    load_model(str(folder / "adapter"))
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    assert summary["steps"] == 1
    assert (summary["accuracy"][0]["name"], summary["accuracy"][-1]["name"]) == ("before", "after RL")
    return summary


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
    def text(self) -> str:
        """The block as the page shows it."""
        texts = [text for _, text in fenced_blocks(self.page, "python") if self.part in text]
        assert len(texts) == 1, f"{self.page}: {len(texts)} Python blocks hold {self.part!r}; a test is about one"
        return texts[0]

    def run(
        self, replace: Mapping[str, str] | None = None, *, before: str = "", given: Mapping[str, Any] | None = None
    ) -> Ran:
        """Run the block in this process, as a script of its own.

        A comment behind an expression that is a Python value, such as `# [1.2]`, has to be what the expression gives.

        Args:
            replace: texts of the block, each of which it has to hold, to others: small sizes, addresses of servers.
            before: code that the page leaves to the reader, such as imports.
            given: names that the block may use.

        Raises:
            AssertionError: the block is not there, or a value is not the one in its comment.
        """
        source = self.text
        for old, new in (replace or {}).items():
            assert old in source, f"{self.page}: a test replaces {old!r} in the block with {self.part!r}"
            source = source.replace(old, new)
        source = f"{before}\n{source}"
        ran = Ran(names={"__name__": "page", **(given or {})})
        expected = _values_in_comments(source)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            for statement in ast.parse(source).body:
                if not isinstance(statement, ast.Expr):
                    exec(compile(ast.Module([statement], []), self.page, "exec"), ran.names)
                    continue
                value = eval(compile(ast.Expression(statement.value), self.page, "eval"), ran.names)
                ran.values.append(value)
                if statement.end_lineno in expected:
                    assert value == pytest.approx(expected[statement.end_lineno]), f"{self.page}: {self.part}"
        ran.printed = out.getvalue()
        return ran


def _values_in_comments(source: str) -> dict[int, Any]:
    """Return the comments that are Python values, by their line."""
    values = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            with contextlib.suppress(ValueError, SyntaxError):
                values[token.start[0]] = ast.literal_eval(token.string.removeprefix("#").strip())
    return values
