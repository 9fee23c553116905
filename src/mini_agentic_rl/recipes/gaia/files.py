"""Reading the file that comes with a question: text of any kind, and spreadsheets as comma-separated values."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .toolbox import FunctionTool

PAGE = 6000
"""Characters of a file that one call shows."""
MAX_BYTES = 20_000_000
"""A longer file is not read."""
MAX_CELLS = 200_000
"""Cells of a spreadsheet that are read."""


def read_file_tool(path: str | Path, name: str) -> FunctionTool:
    """Return a tool that shows one file, page by page, and no other file.

    Args:
        path: where the file is.
        name: what the question calls it.
    """
    path = Path(path)

    def run(arguments: Mapping[str, Any]) -> str:
        offset = arguments.get("offset", 0)
        if not isinstance(offset, int) or offset < 0:
            raise ValueError("offset must be a number of characters, 0 or more")
        text = file_text(path)
        end = offset + PAGE
        if offset and offset >= len(text):
            raise ValueError(f"the file has {len(text)} characters")
        rest = f"\n[{len(text) - end} more characters; go on with offset {end}]" if len(text) > end else ""
        return text[offset:end] + rest

    return FunctionTool(
        "read_file",
        f"Read the attached file {name}. Long files come in pages: give the offset that the page before names.",
        {"type": "object", "properties": {"offset": {"type": "integer", "minimum": 0}}, "required": []},
        run,
    )


def file_text(path: Path) -> str:
    """Return a file as text: .xlsx sheet by sheet as comma-separated values, JSON indented, other text as it is.

    Raises:
        ValueError: the file is neither, or too long; the message is for the model to read.
        ImportError: a spreadsheet, and openpyxl is not installed (extra "gaia").
        OSError: it cannot be read.
    """
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path.name} is longer than {MAX_BYTES} bytes")
    suffix = path.suffix.lower()
    if suffix in (".xlsx", ".xlsm"):
        return _spreadsheet(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name} is no text; {suffix or 'such'} files cannot be read here") from error
    if suffix == ".json":
        try:
            return json.dumps(json.loads(text), indent=1, ensure_ascii=False)
        except (ValueError, RecursionError):
            return text
    return text


def _spreadsheet(path: Path) -> str:
    try:
        from openpyxl import load_workbook
        from openpyxl.utils.exceptions import InvalidFileException
    except ImportError as error:
        raise ImportError('reading .xlsx files needs openpyxl: pip install "mini-agentic-rl[gaia]"') from error
    from zipfile import BadZipFile

    try:
        book = load_workbook(path, read_only=True, data_only=True)
    except (InvalidFileException, BadZipFile, KeyError) as error:
        raise ValueError(f"{path.name} is no spreadsheet that can be read") from error
    text, cells = io.StringIO(), 0
    try:
        for sheet in book.worksheets:
            text.write(f"Sheet {sheet.title}\n")
            rows = csv.writer(text, lineterminator="\n")
            for row in sheet.iter_rows(values_only=True):
                cells += len(row)
                if cells > MAX_CELLS:
                    raise ValueError(f"{path.name} has more than {MAX_CELLS} cells")
                rows.writerow("" if cell is None else cell for cell in row)
    finally:
        book.close()
    return text.getvalue()
