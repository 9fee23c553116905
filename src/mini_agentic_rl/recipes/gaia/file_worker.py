"""The process that reads an attached file, with limits on memory and time, and without the right to write.

    python -m mini_agentic_rl.recipes.gaia.file_worker PATH

Asked `[offset, characters]`, it answers a page of the file's text and the length of the whole, or what is wrong with
the file. Whoever made the file may have meant harm: a spreadsheet of a few kilobytes can unpack to gigabytes, name
cells by the million, or hold entities that grow. `files` kills the process when it is late.
"""

from __future__ import annotations

import csv
import io
import json
import sys
import zipfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from ...processes import confine, serve_answers

MAX_BYTES: Final = 20_000_000
"""A longer file is not read."""
MAX_CELLS: Final = 200_000
"""Cells of a spreadsheet that are read; a row without any counts as one."""
MAX_UNPACKED: Final = 100_000_000
"""Bytes that a spreadsheet may unpack to."""
MAX_PARTS: Final = 1000
"""Files that a spreadsheet may consist of."""
MAX_TEXT: Final = 20_000_000
"""Characters of text that are made of a spreadsheet."""
MAX_JSON_VALUES: Final = 1_000_000
"""JSON with more values is shown as it is."""
MEMORY_MIB: Final = 768
"""Memory limit of the process beyond its memory at the start, in MiB."""

_FORBIDDEN: Final = tuple(
    word.encode(encoding) for word in ("<!DOCTYPE", "<!ENTITY") for encoding in ("ascii", "utf-16-le", "utf-16-be")
)
_BLOCK: Final = 1 << 20


def file_text(path: Path) -> str:
    """Return a file as text: .xlsx sheet by sheet as comma-separated values, JSON indented, other text as it is.

    Raises:
        ValueError: the file is neither, or too long; the message is for the model to read.
        OSError: it cannot be read.
    """
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path.name} is longer than {MAX_BYTES} bytes")
    suffix = path.suffix.lower()
    if suffix in (".xlsx", ".xlsm"):
        return _spreadsheet(path)
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name} is no text; {suffix or 'such'} files cannot be read here") from error
    if suffix == ".json" and sum(map(content.count, (b",", b"[", b"{"))) < MAX_JSON_VALUES:
        try:
            return json.dumps(json.loads(text), indent=1, ensure_ascii=False)
        except (ValueError, RecursionError):
            return text
    return text


def _spreadsheet(path: Path) -> str:
    broken = ValueError(f"{path.name} is no spreadsheet that can be read")
    try:
        with zipfile.ZipFile(path) as parts:
            _check_parts(parts, path.name)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise broken from error  # no ZIP file, or encrypted, or packed in a way that is not read
    try:
        return _sheets(path)
    except (ValueError, MemoryError):
        raise
    except Exception as error:  # openpyxl checks little: any part of a broken file fails in a way of its own
        raise broken from error


def _check_parts(parts: zipfile.ZipFile, name: str) -> None:
    """Refuse files that unpack to too much, and XML that declares entities, which no spreadsheet program writes."""
    members = parts.infolist()
    if len(members) > MAX_PARTS:
        raise ValueError(f"{name} consists of more than {MAX_PARTS} files")
    if sum(member.file_size for member in members) > MAX_UNPACKED:
        raise ValueError(f"{name} unpacks to more than {MAX_UNPACKED} bytes")
    longest = max(map(len, _FORBIDDEN))
    for member in members:
        if not member.filename.lower().endswith((".xml", ".rels", ".vml")):
            continue
        with parts.open(member) as file:  # it reads no more than the size that was declared
            tail = b""
            while block := file.read(_BLOCK):
                if any(word in tail + block for word in _FORBIDDEN):
                    raise ValueError(f"{name} declares entities, which are not read here")
                tail = block[-longest:]


def _sheets(path: Path) -> str:
    from openpyxl import load_workbook

    book = load_workbook(path, read_only=True, data_only=True)
    text, cells = io.StringIO(), 0
    try:
        for sheet in book.worksheets:
            text.write(f"Sheet {sheet.title}\n")
            rows = csv.writer(text, lineterminator="\n")
            for row in sheet.iter_rows(values_only=True):
                cells += max(1, len(row))
                if cells > MAX_CELLS:
                    raise ValueError(f"{path.name} has more than {MAX_CELLS} cells")
                rows.writerow("" if cell is None else cell for cell in row)
                if text.tell() > MAX_TEXT:
                    raise ValueError(f"{path.name} holds more than {MAX_TEXT} characters")
    finally:
        book.close()
    return text.getvalue()


def _prepared(path: Path) -> Callable[[Any], dict[str, Any]]:
    @cache
    def text() -> str:
        return file_text(path)

    def answer(question: Any) -> dict[str, Any]:
        offset, characters = question
        try:
            whole = text()
        except OSError as error:
            return {"failure": [error.errno, error.strerror or str(error)]}
        except ValueError as error:
            return {"error": str(error)}
        except MemoryError:
            return {"error": f"{path.name} needs too much memory to be read"}
        return {"text": whole[offset : offset + characters], "length": len(whole)}

    confine(MEMORY_MIB)
    return answer


if __name__ == "__main__":
    serve_answers(partial(_prepared, Path(sys.argv[1])))
