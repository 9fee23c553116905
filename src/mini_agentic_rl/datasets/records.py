"""Records of files (JSON Lines, JSON, CSV, TSV, Parquet), folders, Arrow tables and the Hugging Face Hub.

Files are streamed, except .json. A record that cannot be read is yielded as a `BadRecord`, so the caller decides
whether to go on.

All values of a struct column in Arrow have the same fields, filled with null where a record lacks one. So a null in a
struct is removed. Columns of the type `arrow.json` hold JSON text; their nulls are kept.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias, cast

from ..errors import first_line
from ..hub_access import ask_hub
from .rows import SPLIT_NAMES, DatasetError

if TYPE_CHECKING:
    import pyarrow

    from datasets import Dataset

ROWS_AT_A_TIME = 512
"""Rows that are decoded at once."""

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
    """Return a function that converts a value of this array; None if no value needs conversion."""
    from pyarrow import types

    kind = array.type
    if getattr(kind, "extension_name", None) == "arrow.json":
        return _json_value
    if types.is_map(kind):
        read_item = _reader(array.items) or (lambda value: value)
        return lambda pairs: {key: None if value is None else read_item(value) for key, value in pairs}
    if types.is_nested(kind) and hasattr(array, "values"):
        read_value = _reader(array.values)
        if read_value is None:
            return None
        return lambda values: [None if value is None else read_value(value) for value in values]
    if not types.is_struct(kind):
        return None
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


def _json_value(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


SUFFIXES: tuple[str, ...] = (".jsonl", ".jsonl.gz", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
"""Suffixes of data files; a file with another suffix is read as JSON Lines."""

_FIELD_LIMIT = 1 << 27
"""Characters of one cell of a CSV file."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True)
class BadRecord:
    """A line or row that is no record."""

    reason: str
    """The same text for all records with this fault."""
    detail: str = ""


Record: TypeAlias = dict[str, Any]
Located: TypeAlias = tuple[str, Record]
"""Where a record is, as an error message begins, and the record."""


def is_data_file(path: Path) -> bool:
    """Return True for the name of a data file."""
    return path.name.lower().endswith(SUFFIXES)


def read_records(path: Path, *, setting: str = "dataset") -> Iterator[tuple[int, Record | BadRecord]]:
    """Yield each record with its line, or in .json and .parquet files its number, from 1 on.

    Raises:
        DatasetError: the file is missing or unreadable as a whole; the message begins with `setting` and the path.
    """
    name = path.name.lower()
    try:
        if name.endswith(".parquet"):
            yield from _parquet(path, setting)
        elif name.endswith((".csv", ".tsv")):
            yield from _csv(path, "\t" if name.endswith(".tsv") else ",")
        elif name.endswith(".json"):
            yield from _json(path, setting)
        else:
            yield from _lines(path)
    except OSError as error:
        raise DatasetError(f"{path} cannot be read ({error.strerror or error})", setting=setting) from error
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path} is not UTF-8, save it as UTF-8 ({error})", setting=setting) from error
    except (EOFError, zlib.error) as error:
        raise DatasetError(f"{path} cannot be read ({error})", setting=setting) from error


def _lines(path: Path) -> Iterator[tuple[int, Record | BadRecord]]:
    with path.open("rb") as raw:
        file = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if path.name.lower().endswith(".gz") else raw
        for number, line in enumerate(file, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                yield number, BadRecord("not UTF-8", str(error))
                continue
            if text.strip():
                yield number, _parsed(text)


def _json(path: Path, setting: str) -> Iterator[tuple[int, Record | BadRecord]]:
    """Yield the records of a list, or of the only list in an object. JSON Lines named .json are read too."""
    text = path.read_text(encoding="utf-8-sig")
    try:
        records = json.loads(text)
    except (ValueError, RecursionError) as error:
        first = _parsed(text.lstrip().split("\n", 1)[0])
        if isinstance(first, BadRecord):
            raise DatasetError(f"{path}: not valid JSON ({error})", setting=setting) from error
        yield from _lines(path)
        return
    if isinstance(records, dict):
        value = next(iter(records.values()), None)
        records = value if len(records) == 1 and isinstance(value, list) else records.get("data", [records])
    if not isinstance(records, list):
        raise DatasetError(f"{path}: must hold a list of records, not {type(records).__name__}", setting=setting)
    has_surrogates = bool(_SURROGATE.search(text))
    for number, item in enumerate(records, 1):
        yield number, _checked(item, has_surrogates)


def _csv(path: Path, delimiter: str) -> Iterator[tuple[int, Record | BadRecord]]:
    csv.field_size_limit(_FIELD_LIMIT)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, delimiter=delimiter, strict=True)
        rows = iter(reader)
        while True:
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                yield reader.line_num, BadRecord("not valid CSV", str(error))
                continue
            if None in row or None in row.values():
                yield reader.line_num, BadRecord("another number of cells than the header has")
                continue
            yield reader.line_num, row


def _parquet(path: Path, setting: str) -> Iterator[tuple[int, Record | BadRecord]]:
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            batches = file.iter_batches(batch_size=ROWS_AT_A_TIME)
            yield from enumerate((record for batch in batches for record in table_records(batch)), 1)
    except Exception as error:  # a damaged file may raise anything
        raise DatasetError(f"{path}: cannot be read ({' '.join(str(error).split())})", setting=setting) from error


def _parsed(line: str) -> Record | BadRecord:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return BadRecord("not valid JSON", str(error))
    return _checked(record, bool(_SURROGATE.search(line)))


def _checked(record: Any, has_surrogates: bool) -> Record | BadRecord:
    """Return a record if it is an object; with `has_surrogates`, its text must not hold half a surrogate pair."""
    if not isinstance(record, dict):
        kind = {list: "a list", type(None): "null"}.get(type(record), f"of type {type(record).__name__}")
        return BadRecord("not a JSON object", f"it is {kind}")
    if has_surrogates:
        try:
            json.dumps(record, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return BadRecord("half a surrogate pair", "a character outside the basic plane was cut in two")
    return record


def fields_of(record: Mapping[str, Any]) -> str:
    """Return the names of a record's fields, for an error."""
    names = ", ".join(list(map(str, record))[:12])
    return f"its fields are {names}" if names else "it has no fields"


def located(path: Path) -> list[Located]:
    """Return the records of a file.

    Raises:
        DatasetError: the file or a record cannot be read, or there is no record.
    """
    word = "row" if path.suffix.lower() in (".json", ".parquet") else "line"
    records: list[Located] = []
    for number, record in read_records(path):
        where = f"{path}, {word} {number}"
        if isinstance(record, BadRecord):
            detail = f" ({record.detail})" if record.detail else ""
            raise DatasetError(f"{where}: {record.reason}{detail}", setting="dataset")
        records.append((where, record))
    if not records:
        raise DatasetError(f"{path} holds no rows", setting="dataset")
    return records


_FOLDERS = ("", "data", "main", "default")
"""Subfolders that are searched for files named for a split."""
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(?::[\w.-]+)?")


def is_hub_name(name: str) -> bool:
    """Return True for the form of a name on the Hub: "owner/name", or "owner/name:configuration"."""
    return bool(_HUB_NAME.fullmatch(name))


def load_hub(name: str) -> dict[str, list[Located]]:
    """Return the records of each published split.

    Raises:
        DatasetError: no such data set, no access, or no network.
    """
    from datasets import load_dataset

    source, _, configuration = name.partition(":")
    hub_answers = ask_hub()
    try:
        splits = load_dataset(source, configuration or None)
    except Exception as error:  # the Hub client raises any error of its transport
        reason = first_line(error)
        if not hub_answers and not Path(source).exists():
            reason = "which does not answer, and it was never fetched before"
        raise DatasetError(
            f"{name} cannot be loaded from the Hub ({reason}); give a local copy of it instead", setting="dataset"
        ) from error
    return {
        str(split): [(f"{name}, {split} row {index}", dict(record)) for index, record in enumerate(records_of(records))]
        for split, records in splits.items()
    }


def load_folder(folder: Path) -> dict[str, list[Located]]:
    """Return the records of each split of a folder, from files named for their split, such as train.jsonl and
    validation-00000-of-00002.parquet, in the folder or in its subfolder data, main or default.

    Raises:
        DatasetError: there is no such file, or one that cannot be read.
    """
    known = {alias for names in SPLIT_NAMES.values() for alias in names}
    for place in _FOLDERS:
        inner = folder / place
        if not inner.is_dir():
            continue
        files: dict[str, list[Path]] = {}
        for path in sorted(inner.iterdir()):
            split = re.split(r"[-.]", path.name, maxsplit=1)[0]
            if path.is_file() and is_data_file(path) and split.split("_")[0] in known:
                files.setdefault(split, []).append(path)
        if files:
            return {split: [item for path in paths for item in located(path)] for split, paths in files.items()}
    raise DatasetError(f"{folder} holds no train.jsonl, nor another file named for a split", setting="dataset")
