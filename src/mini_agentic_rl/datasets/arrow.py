"""Records of Arrow tables: Parquet files and data sets of the `datasets` library.

All values of a struct column have the same fields, so Arrow fills in null where a record has no such field. A null in
a struct is taken for such padding and removed. Columns of the type `arrow.json` hold JSON text; their nulls are kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import pyarrow

    from datasets import Dataset

ROWS_AT_A_TIME = 512
"""Rows that are decoded at a time."""

_Reader: TypeAlias = Callable[[Any], Any]


def records_of(rows: Dataset | Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield each row of a data set of the `datasets` library as a record; other rows as they are."""
    if not hasattr(rows, "with_format"):
        yield from rows
        return
    for table in rows.with_format("arrow").iter(ROWS_AT_A_TIME):
        yield from table_records(table)


def table_records(table: pyarrow.Table | pyarrow.RecordBatch) -> list[dict[str, Any]]:
    """Return each row as a record, without the nulls that Arrow filled in."""
    import pyarrow

    if isinstance(table, pyarrow.Table):
        return [record for batch in table.to_batches() for record in table_records(batch)]
    read = _reader(table.to_struct_array())
    return table.to_pylist() if read is None else list(map(read, table.to_pylist()))


def _reader(array: pyarrow.Array) -> _Reader | None:
    """Return the function that reads a value of this array; None where all values stay as they are."""
    from pyarrow import types

    kind = array.type
    if getattr(kind, "extension_name", None) == "arrow.json":
        return _json
    if types.is_map(kind):
        read_item = _reader(array.items) or _as_it_is
        return lambda pairs: {key: _kept(read_item, value) for key, value in pairs}
    if types.is_nested(kind) and hasattr(array, "values"):
        inner = _reader(array.values)
        return None if inner is None else lambda values: [_kept(inner, value) for value in values]
    return _struct_reader(array) if types.is_struct(kind) else None


def _struct_reader(array: pyarrow.StructArray) -> _Reader | None:
    children = {field.name: array.field(index) for index, field in enumerate(array.type)}
    padded = [name for name, child in children.items() if child.null_count]
    readers = {name: reader for name, child in children.items() if (reader := _reader(child)) is not None}
    if not padded and not readers:
        return None

    def read(value: dict[str, Any]) -> dict[str, Any]:
        for name in padded:
            if value[name] is None:
                del value[name]
        for name, reader in readers.items():
            if name in value:
                value[name] = reader(value[name])
        return value

    return read


def _as_it_is(value: Any) -> Any:
    return value


def _kept(reader: _Reader, value: Any) -> Any:
    return None if value is None else reader(value)


def _json(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value
