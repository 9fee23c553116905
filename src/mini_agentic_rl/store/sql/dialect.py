"""What SQLite and PostgreSQL write differently, or what SQLAlchemy has no common word for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import BigInteger, Integer, String, Table, TextClause, text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import NullType, TypeEngine

ExactText: Final[TypeEngine[str]] = String().with_variant(String(collation="C"), "postgresql")
"""Compared and ordered by code points, whatever the locale of the database."""
Count: Final[TypeEngine[int]] = Integer().with_variant(BigInteger(), "postgresql")
"""64 bits. As a primary key: given out by the database, ever larger."""
_UNTYPED: Final[TypeEngine[Any]] = NullType()  # a Boolean is written `… = 1` for SQLite, which then uses no index


class any_of(FunctionElement[bool]):
    """`any_of(column, values)`: whether the column is one of `values`, a JSON list in one parameter, however long."""

    type = _UNTYPED
    inherit_cache = True


class contains(FunctionElement[bool]):
    """`contains(column, text)`: whether the text is in the column, exactly as it is written."""

    type = _UNTYPED
    inherit_cache = True


@compiles(any_of, "sqlite")
def _any_of_sqlite(element: any_of, compiler: SQLCompiler, **options: Any) -> str:
    column, values = (compiler.process(clause, **options) for clause in element.clauses)
    return f"{column} IN (SELECT value FROM json_each({values}))"


@compiles(any_of, "postgresql")
def _any_of_postgres(element: any_of, compiler: SQLCompiler, **options: Any) -> str:
    column, values = (compiler.process(clause, **options) for clause in element.clauses)
    return f"{column} IN (SELECT json_array_elements_text(CAST({values} AS json)))"


@compiles(contains, "sqlite")
def _contains_sqlite(element: contains, compiler: SQLCompiler, **options: Any) -> str:
    column, sought = (compiler.process(clause, **options) for clause in element.clauses)
    return f"instr({column}, {sought}) > 0"


@compiles(contains, "postgresql")
def _contains_postgres(element: contains, compiler: SQLCompiler, **options: Any) -> str:
    column, sought = (compiler.process(clause, **options) for clause in element.clauses)
    return f"strpos({column}, {sought}) > 0"


def insert_or_replace(table: Table, key: str) -> TextClause:
    """Insert a row, or replace all of it but its number."""
    names = stored_columns(table)
    new = ", ".join(f"{name} = excluded.{name}" for name in names if name != key)
    return text(f"{_insert(table, names)} ON CONFLICT ({key}) DO UPDATE SET {new}")


def insert_new(table: Table, key: Iterable[str]) -> TextClause:
    """Insert a row unless there is one with this key."""
    return text(f"{_insert(table, stored_columns(table))} ON CONFLICT ({', '.join(key)}) DO NOTHING")


def stored_columns(table: Table) -> list[str]:
    """The columns that an insert gives values to: all but the number, which the database gives."""
    return [column.name for column in table.c if column.name != "number"]


def _insert(table: Table, names: list[str]) -> str:
    values = ", ".join(f":{name}" for name in names)
    return f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({values})"
