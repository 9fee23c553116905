"""Attached files of a question that mean harm, read by the toolbox of the GAIA recipe."""

from __future__ import annotations

import io
import os
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from mini_agentic_rl.recipes.gaia.agent import read_file_tool

from .conftest import Attack

pytest.importorskip("openpyxl", reason="openpyxl is not installed: spreadsheets are left unchecked")
ONE_GIB = 1024.0

TYPES = (
    '<?xml version="1.0"?><Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Override PartName="/xl/workbook.xml" '
    'ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"/>'
    '<Override PartName="/xl/sharedStrings.xml" '
    'ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"/></Types>'
)
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006/relationships"
MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
RELS = f'<Relationships xmlns="{PACKAGE}"><Relationship Id="r1" Type="{OFFICE}/%s" Target="%s"/></Relationships>'
BOOK = f'<workbook xmlns="{MAIN}" xmlns:r="{OFFICE}"><sheets>%s</sheets></workbook>'
SHEET = '<sheet name="s" sheetId="1" r:id="r1"/>'
HEAD = f'<worksheet xmlns="{MAIN}"><sheetData>'
TAIL = "</sheetData></worksheet>"
GROWING = "".join(f"<!ENTITY a{n} '{f'&a{n - 1};' * 10}'>" for n in range(1, 10))
LAUGH = f"<!DOCTYPE l [<!ENTITY a0 'ha'>{GROWING}]>"


def workbook(rows: str | bytes = "", *, book: str = BOOK % SHEET, shared: str = "", more: int = 0) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("[Content_Types].xml", TYPES)
        file.writestr("_rels/.rels", RELS % ("officeDocument", "xl/workbook.xml"))
        file.writestr("xl/workbook.xml", book)
        file.writestr("xl/_rels/workbook.xml.rels", RELS % ("worksheet", "worksheets/sheet1.xml"))
        file.writestr("xl/worksheets/sheet1.xml", HEAD + rows + TAIL if isinstance(rows, str) else rows)
        file.writestr("xl/sharedStrings.xml", f'<sst xmlns="{MAIN}">{shared}</sst>')
        for number in range(more):
            file.writestr(f"xl/{number}.xml", "")
    return packed.getvalue()


def row(number: int, cells: str) -> str:
    return f'<row r="{number}">{cells}</row>'


def lying(content: bytes) -> bytes:
    """A workbook whose sheet says that it unpacks to 10 bytes."""
    at = content.rindex(b"PK\x01\x02")
    return content[: at + 24] + (10).to_bytes(4, "little") + content[at + 28 :]


LAUGHS = LAUGH + HEAD + row(1, "<c><v>&a9;</v></c>") + TAIL
GOOD = workbook(row(1, '<c r="A1"><v>42</v></c>'))
SHAPES: dict[str, tuple[str, Callable[[], bytes], bool]] = {
    "a good one": ("a.xlsx", lambda: GOOD, True),
    "a sheet of 300 MiB of spaces": ("a.xlsx", lambda: workbook(b" " * (300 * 2**20)), False),
    "a sheet of 90 MB of rows": ("a.xlsx", lambda: workbook(row(1, "") * 4_000_000), False),
    "a row of a million cells": ("a.xlsx", lambda: workbook(row(1, "<c><v>1</v></c>" * 1_000_000)), False),
    "a cell in the last column of each row": (
        "a.xlsx", lambda: workbook("".join(row(n, f'<c r="XFD{n}"><v>1</v></c>') for n in range(1, 5000))), False),
    "a cell in the last row": ("a.xlsx", lambda: workbook(row(1_048_576, '<c r="A1048576"><v>1</v></c>')), False),
    "a row of number 10**15": ("a.xlsx", lambda: workbook(row(10**15, f'<c r="A{10**15}"><v>1</v></c>')), False),
    "a column of 50 letters": ("a.xlsx", lambda: workbook(row(1, f'<c r="{"Z" * 50}1"><v>1</v></c>')), False),
    "a billion laughs": ("a.xlsx", lambda: workbook(LAUGHS.encode()), False),
    "laughs in UTF-16": ("a.xlsx", lambda: workbook(LAUGHS.encode("utf-16")), False),
    "an outer entity": (
        "a.xlsx", lambda: workbook(b'<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]><x>&f;</x>'), False),
    "four million shared strings": ("a.xlsx", lambda: workbook(shared="<si><t>x</t></si>" * 4_000_000), False),
    "elements 100,000 deep": ("a.xlsx", lambda: workbook("<row>" * 100_000 + "</row>" * 100_000), False),
    "a sheet 1,000 times": ("a.xlsx", lambda: workbook(row(1, "<c/>" * 999), book=BOOK % (SHEET * 1000)), False),
    "5,000 parts": ("a.xlsx", lambda: workbook(more=5000), False),
    "XML that is none": ("a.xlsx", lambda: workbook("<row"), False),
    "no sheets": ("a.xlsx", lambda: workbook(book=BOOK % ""), False),
    "a size that lies": ("a.xlsx", lambda: lying(GOOD), False),
    "half a file": ("a.xlsx", lambda: GOOD[: len(GOOD) // 2], False),
    "no ZIP": ("a.xlsx", lambda: b"PK\x03\x04" + os.urandom(10_000), False),
    "nothing": ("a.xlsx", lambda: b"", False),
    "JSON of six million lists": ("a.json", lambda: b"[" + b"[]," * 6_000_000 + b"0]", True),
    "JSON 10 million deep": ("a.json", lambda: b"[" * 10_000_000, True),
    "JSON with a number of a million digits": ("a.json", lambda: b"9" * 1_000_000, True),
    "a line of 20 MB": ("a.csv", lambda: b"x," * 9_999_999, True),
    "21 MB": ("a.csv", lambda: b"x" * 21_000_000, False),
    "text that is none": ("a.txt", lambda: b"\xff\xfe\xfd", False),
}  # fmt: skip


def outcome(path: Path) -> tuple[str, str]:
    """Read a page; whatever is wrong with a file is a ValueError for the model."""
    try:
        return "read", str(read_file_tool(path, path.name).run({}))
    except ValueError as error:
        return "refused", str(error)


def test_hostile_files_of_a_question(attack: Attack, tmp_path: Path) -> None:
    draw = random.Random(22)
    names = draw.sample(list(SHAPES), len(SHAPES))
    for number in range(attack.times(60)):
        name = names[number % len(names)] if number < len(names) else "damaged"
        file, made, good = SHAPES.get(name, ("a.xlsx", lambda: GOOD, False))
        content = made()
        if name == "damaged":
            at = draw.randrange(len(content))
            content = content[:at] + draw.randbytes(draw.randrange(1, 20)) + content[at + draw.randrange(20) :]
        path = tmp_path / f"{number}{Path(file).suffix}"
        path.write_bytes(content)
        with (
            attack.attempt(name, limit_s=100),
            attack.memory_of(os.getpid()),
        ):  # its reader's memory is bounded by itself
            kind, text = outcome(path)
            assert len(text) < (7000 if kind == "read" else 300)
            assert not good or kind == "read"
        path.unlink()
    assert attack.row.peak_mib is not None
    assert attack.row.peak_mib < ONE_GIB
