"""Records of files, folders, Arrow tables and the Hugging Face Hub: JSON Lines, JSON, CSV, TSV or Parquet.

Large files are streamed, except .json. A record that cannot be read is yielded as a `BadRecord`, so that the caller
decides whether it ends the work.

All values of a struct column in Arrow have the same fields, filled with null where a record lacks one. So a null in a
struct is removed. Columns of the type `arrow.json` hold JSON text; their nulls are kept.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias, cast

from ..hub_access import ask_hub
from .rows import SPLIT_NAMES, DatasetError

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
        return _json_value
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


def _json_value(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


SUFFIXES: tuple[str, ...] = (".jsonl", ".jsonl.gz", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
"""File names that are read here; a file with another name is taken for JSON Lines."""

_FIELD_LIMIT = 1 << 27
"""Characters of one cell of a CSV file."""
_OFTEN = 512
"""Records between two reports of progress."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True)
class BadRecord:
    """A place in a file that holds no record."""

    reason: str
    """The same words for all such places."""
    detail: str = ""
    """Detail of this record."""


Record: TypeAlias = dict[str, Any]
Progress: TypeAlias = Callable[[float], None]
Located: TypeAlias = tuple[str, Record]
"""A record, behind the words that begin an error about it."""


def is_data_file(path: Path) -> bool:
    """Return True if the name is one of a data file."""
    return path.name.lower().endswith(SUFFIXES)


def stem(path: Path) -> str:
    """Return the name of a file without its suffixes."""
    name = path.name
    return next((name[: -len(suffix)] for suffix in SUFFIXES if name.lower().endswith(suffix)), name)


def read_records(
    path: Path, *, setting: str = "dataset", progress: Progress | None = None
) -> Iterator[tuple[int, Record | BadRecord]]:
    """Yield each record with its place: its line from 1 on, in .json and .parquet files its number from 1 on.

    `progress` is told from time to time which part of the file was read, from 0 to 1.

    Raises:
        DatasetError: the file is missing or unreadable as a whole; the message begins with `setting` and the path.
    """
    name = path.name.lower()
    told = progress if progress is not None else _untold
    try:
        if name.endswith(".parquet"):
            yield from _parquet(path, told)
        elif name.endswith((".csv", ".tsv")):
            yield from _csv(path, "\t" if name.endswith(".tsv") else ",", told)
        elif name.endswith(".json"):
            yield from _json(path)
        else:
            yield from _lines(path, told)
    except OSError as error:
        raise DatasetError(f"{path} cannot be read ({error.strerror or error})", setting=setting) from error
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path} is not UTF-8, save it as UTF-8 ({error})", setting=setting) from error
    except (EOFError, zlib.error) as error:
        raise DatasetError(f"{path} cannot be read ({error})", setting=setting) from error


def _untold(part: float) -> None:
    """For those who do not ask."""


def _lines(path: Path, progress: Progress) -> Iterator[tuple[int, Record | BadRecord]]:
    with path.open("rb") as raw:
        size = max(1, path.stat().st_size)
        file = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if path.name.lower().endswith(".gz") else raw
        for number, line in enumerate(file, 1):
            if number % _OFTEN == 0:
                progress(raw.tell() / size)
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                yield number, BadRecord("not UTF-8", str(error))
                continue
            if text.strip():
                yield number, _parsed(text)


def _json(path: Path) -> Iterator[tuple[int, Record | BadRecord]]:
    """Yield the records of a list, or of the only list in an object; JSON Lines under the wrong name are read too."""
    text = path.read_text(encoding="utf-8-sig")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        first = _parsed(text.lstrip().split("\n", 1)[0])
        if isinstance(first, BadRecord):
            raise DatasetError(f"{path}: not valid JSON ({error})") from error
        yield from _lines(path, _untold)
        return
    if isinstance(found, dict):
        lists = [value for value in found.values() if isinstance(value, list)]
        under = lists[0] if len(lists) == 1 and len(found) == 1 else None
        found = under if under is not None else found.get("data", [found])
    if not isinstance(found, list):
        raise DatasetError(f"{path}: must hold a list of records, not {type(found).__name__}")
    suspicious = bool(_SURROGATE.search(text))
    for number, item in enumerate(found, 1):
        yield number, _checked(item, suspicious)


def _csv(path: Path, delimiter: str, progress: Progress) -> Iterator[tuple[int, Record | BadRecord]]:
    csv.field_size_limit(_FIELD_LIMIT)
    with path.open("rb") as raw:
        size = max(1, path.stat().st_size)
        reader = csv.DictReader(io.TextIOWrapper(raw, "utf-8-sig", newline=""), delimiter=delimiter, strict=True)
        rows = iter(reader)
        while True:
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                yield reader.line_num, BadRecord("not valid CSV", str(error))
                continue
            if reader.line_num % _OFTEN == 0:
                progress(raw.tell() / size)
            if None in row or None in row.values():
                yield reader.line_num, BadRecord("another number of cells than the header has")
                continue
            yield reader.line_num, row


def _parquet(path: Path, progress: Progress) -> Iterator[tuple[int, Record | BadRecord]]:
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            number, rows = 0, max(1, file.metadata.num_rows)
            for batch in file.iter_batches(batch_size=ROWS_AT_A_TIME):
                for record in table_records(batch):
                    number += 1
                    yield number, record
                progress(number / rows)
    except Exception as error:  # of pyarrow, and of Python where a value is none: one that was damaged may raise any
        raise DatasetError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error


def _parsed(line: str) -> Record | BadRecord:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return BadRecord("not valid JSON", str(error))
    return _checked(record, bool(_SURROGATE.search(line)))


def _checked(record: Any, suspicious: bool) -> Record | BadRecord:
    """Return a record, if it is an object. In `suspicious` text there are surrogates, which may not come in pairs."""
    if not isinstance(record, dict):
        kind = (
            "a list" if isinstance(record, list) else "null" if record is None else f"of type {type(record).__name__}"
        )
        return BadRecord("not a JSON object", f"it is {kind}")
    if suspicious:
        try:
            json.dumps(record, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return BadRecord("half a surrogate pair", "a character outside the basic plane was cut in two")
    return record


def fields_of(record: Mapping[str, Any]) -> str:
    """Return the names of a record's fields, as an error shows them."""
    names = ", ".join(list(map(str, record))[:12])
    return f"its fields are {names}" if names else "it has no fields"


def located(path: Path) -> list[Located]:
    """Return the records of a file.

    Raises:
        DatasetError: the file or a record cannot be read, or it holds none.
    """
    word = "row" if path.suffix.lower() in (".json", ".parquet") else "line"
    found: list[Located] = []
    for number, record in read_records(path):
        where = f"{path}, {word} {number}"
        if isinstance(record, BadRecord):
            detail = f" ({record.detail})" if record.detail else ""
            raise DatasetError(f"{where}: {record.reason}{detail}", setting="dataset")
        found.append((where, record))
    if not found:
        raise DatasetError(f"{path} holds no rows", setting="dataset")
    return found


_FOLDERS = ("", "data", "main", "default")
"""Subfolders in which the files of a copy may lie."""
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(?::[\w.-]+)?")


def is_hub_name(name: str) -> bool:
    """Return True if a name has the form of one on the Hub: "owner/name", or "owner/name:configuration"."""
    return bool(_HUB_NAME.fullmatch(name))


def load_hub(name: str) -> dict[str, list[Located]]:
    """Return the records of each published split.

    Raises:
        DatasetError: it cannot be had: no such data set, no access, or no network.
    """
    from datasets import load_dataset

    source, _, configuration = name.partition(":")
    answers = ask_hub()
    try:
        found = load_dataset(source, configuration or None)
    except Exception as error:  # the Hub client raises whatever its transport does
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if not answers and not Path(source).exists():
            reason = "which does not answer, and it was never fetched before"
        raise DatasetError(
            f"{name} cannot be loaded from the Hub ({reason}); give a local copy of it instead", setting="dataset"
        ) from error
    return {
        str(split): [(f"{name}, {split} row {index}", dict(record)) for index, record in enumerate(records_of(records))]
        for split, records in found.items()
    }


def load_folder(folder: Path) -> dict[str, list[Located]]:
    """Return the records of each split of a folder: files named for their split, such as train.jsonl and
    validation-00000-of-00002.parquet, in the folder itself or in its data, main or default.

    Raises:
        DatasetError: it holds no such file, or one that cannot be read.
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
