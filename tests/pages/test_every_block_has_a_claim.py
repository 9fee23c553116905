"""No Python block of README or docs/ is left without a test that says what the page promises of it."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from pages.snippets import CLAIMED, fenced_blocks, page_names


@pytest.fixture(scope="module")
def claimed():
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        importlib.import_module(f"pages.{path.stem}")
    return {(block.page, block.text) for block in CLAIMED}


@pytest.mark.parametrize("page", page_names())
def test_every_block_of_a_page_has_a_claim(page, claimed):
    missing = [f"{page}:{line}" for line, text in fenced_blocks(page, "python") if (page, text) not in claimed]
    assert missing == [], (
        f"{', '.join(missing)}: no test says what this block does. Write one in tests/pages/ that names the block with "
        "python_block(page, part), runs it with run(), and asserts what the page says of it; "
        "CONTRIBUTING.md, Tests, shows how."
    )
