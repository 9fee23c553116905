"""Hostile attachments of a question, read by the file tool of the GAIA recipe in its bounded process."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from mini_agentic_rl.recipes.gaia.agent import read_file_tool

from .conftest import Attack

pytest.importorskip("openpyxl", reason="openpyxl is not installed: spreadsheets are left unchecked")

TYPES = (
    '<?xml version="1.0"?><Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Override PartName="/xl/workbook.xml" '
    'ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"/></Types>'
)
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006/relationships"
MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
RELS = f'<Relationships xmlns="{PACKAGE}"><Relationship Id="r1" Type="{OFFICE}/%s" Target="%s"/></Relationships>'
BOOK = (
    f'<workbook xmlns="{MAIN}" xmlns:r="{OFFICE}"><sheets><sheet name="s" sheetId="1" r:id="r1"/></sheets></workbook>'
)
HEAD = f'<worksheet xmlns="{MAIN}"><sheetData>'
TAIL = "</sheetData></worksheet>"
ENTITIES = "".join(f"<!ENTITY a{n} '{f'&a{n - 1};' * 10}'>" for n in range(1, 10))
LAUGHS = f"<!DOCTYPE l [<!ENTITY a0 'ha'>{ENTITIES}]>{HEAD}<row r='1'><c><v>&a9;</v></c></row>{TAIL}"


def workbook(sheet: str | bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("[Content_Types].xml", TYPES)
        file.writestr("_rels/.rels", RELS % ("officeDocument", "xl/workbook.xml"))
        file.writestr("xl/workbook.xml", BOOK)
        file.writestr("xl/_rels/workbook.xml.rels", RELS % ("worksheet", "worksheets/sheet1.xml"))
        file.writestr("xl/worksheets/sheet1.xml", sheet)
    return packed.getvalue()


FILES: dict[str, tuple[str, Callable[[], bytes], bool]] = {
    "a good workbook": ("a.xlsx", lambda: workbook(f'{HEAD}<row r="1"><c r="A1"><v>42</v></c></row>{TAIL}'), True),
    "300 MiB of spaces": ("a.xlsx", lambda: workbook(b" " * (300 * 2**20)), False),
    "a million cells": ("a.xlsx", lambda: workbook(f'{HEAD}<row r="1">{"<c><v>1</v></c>" * 10**6}</row>{TAIL}'), False),
    "a row of number 10**15": (
        "a.xlsx",
        lambda: workbook(f'{HEAD}<row r="{10**15}"><c/></row>{TAIL}'),
        False,
    ),
    "a billion laughs": ("a.xlsx", lambda: workbook(LAUGHS), False),
    "elements 100,000 deep": ("a.xlsx", lambda: workbook(HEAD + "<row>" * 100_000 + "</row>" * 100_000 + TAIL), False),
    "no ZIP": ("a.xlsx", lambda: b"PK\x03\x04" + os.urandom(10_000), False),
    "JSON 10 million deep": ("a.json", lambda: b"[" * 10_000_000, True),
    "a line of 20 MB": ("a.csv", lambda: b"x," * 9_999_999, True),
    "21 MB": ("a.csv", lambda: b"x" * 21_000_000, False),
}
"""Name of the file, its content, and whether it must be read; others may be refused."""


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_attachment_is_read_or_refused_within_its_bounds(attack: Attack, tmp_path: Path, name: str) -> None:
    file, content, must_be_read = FILES[name]
    path = tmp_path / file
    path.write_bytes(content())
    with attack.attempt(name, limit_s=100), attack.memory_of(os.getpid()):
        is_read, text = _outcome(path)
        assert len(text) < (7000 if is_read else 300)
        assert is_read or not must_be_read
    assert (attack.row.peak_mib or 0) < 1024


def _outcome(path: Path) -> tuple[bool, str]:
    try:
        return True, str(read_file_tool(path, path.name).run({}))
    except ValueError as refusal:
        return False, str(refusal)
