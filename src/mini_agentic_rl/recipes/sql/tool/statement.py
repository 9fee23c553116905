"""The first gate: is the text one SELECT statement, and small enough to be looked at?

SQLite decides in the end what is done (see `authorizer`); here a query is refused in words that its author understands.
"""

from __future__ import annotations

import re
from typing import Final

from ....errors import MissingPackageError

try:
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import ParseError, SqlglotError
except ImportError as error:
    raise MissingPackageError("reading SQL", "sqlglot", extra="sql") from error

from .query import QueryError, QueryLimits

_FORBIDDEN: Final = (exp.DDL, exp.DML, exp.Command, exp.Pragma, exp.Attach, exp.Detach, exp.Into, exp.Transaction)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]")
_COMMENTS: Final = re.compile(r"^(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*", re.DOTALL)
_WORD: Final = re.compile(r"[A-Za-z_]+")
_INSTEAD: Final = "the database can only be read; write one SELECT statement"


def check_text(sql: str, limits: QueryLimits) -> None:
    """Look at the text before anything reads it; takes time linear in its length, at most.

    Raises:
        QueryError: it is empty, too long, nested too deeply, or holds characters that no query has.
    """
    if len(sql) > limits.max_characters:
        raise QueryError(f"the query has {len(sql)} characters, more than {limits.max_characters}; write a shorter one")
    if not sql.strip().strip(";").strip():
        raise QueryError("the query is empty; write one SELECT statement")
    if _CONTROL.search(sql):
        raise QueryError("the query holds control characters; write plain text")
    if _nesting(sql) > limits.max_nesting:
        raise QueryError(f"the query nests more than {limits.max_nesting} parentheses; write it in a simpler way")


def check_statement(sql: str, limits: QueryLimits) -> None:
    """Let one SELECT pass, with or without WITH, UNION and the like.

    Raises:
        QueryError: it is anything else, or cannot be read.
    """
    check_text(sql, limits)
    word = _first_word(sql)
    if word not in ("SELECT", "WITH"):
        hint = "; call schema to see tables and columns" if word in ("PRAGMA", "EXPLAIN", "DESCRIBE", "SHOW") else ""
        raise QueryError(f"{word} is not allowed: {_INSTEAD}{hint}" if word else f"this is no query: {_INSTEAD}")
    try:
        statements = [found for found in sqlglot.parse(sql, dialect="sqlite") if found is not None]
    except RecursionError:
        raise QueryError("the query is nested too deeply; write it in a simpler way") from None
    except SqlglotError as error:
        raise QueryError(f"syntax error{_place(error)}; write one SQLite SELECT statement") from None
    statements = [found for found in statements if not isinstance(found, exp.Semicolon)]
    if len(statements) != 1:
        raise QueryError(f"these are {len(statements)} statements; send one SELECT statement at a time")
    _check_tree(statements[0])


def _check_tree(tree: exp.Expression) -> None:
    if not isinstance(tree, exp.Query):
        raise QueryError(f"{tree.key.upper()} is not allowed: {_INSTEAD}")
    for node in tree.walk():
        if isinstance(node, _FORBIDDEN):
            raise QueryError(f"{node.key.upper()} is not allowed: {_INSTEAD}")
        if isinstance(node, exp.With) and node.recursive:
            raise QueryError("recursive WITH is not allowed; use joins")
        if isinstance(node, exp.Placeholder | exp.Parameter):
            raise QueryError("parameters are not allowed; write the value itself, as in name = 'Velovex'")


def _nesting(sql: str) -> int:
    """Return the deepest parentheses, those in texts and comments counted along."""
    deepest = depth = 0
    for character in sql:
        if character == "(":
            depth += 1
            deepest = max(deepest, depth)
        elif character == ")":
            depth -= 1
    return deepest


def _first_word(sql: str) -> str:
    start = _COMMENTS.match(sql)
    word = _WORD.match(sql[start.end() if start else 0 :].lstrip("; \t\r\n"))
    return word.group().upper()[:20] if word else ""


def _place(error: SqlglotError) -> str:
    """Return the place at which sqlglot gave up, as far as it says."""
    found = error.errors[0] if isinstance(error, ParseError) and error.errors else {}
    near = str(found.get("highlight") or found.get("start_context") or "").strip()
    return f" near {near[-40:]!r}" if near else ""
