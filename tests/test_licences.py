"""`make audit` reads licences as SPDX means them, and every installed package has one that is allowed."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

CHECK = runpy.run_path(str(Path(__file__).parent.parent / "dev" / "licences.py"))
LISTS: dict[str, Any] = {"allowed": ["MIT", "Apache-2.0", "Zlib"], "means": ["BSD License", "MPL 2.0 (MPL 2.0)"]}


@pytest.mark.parametrize(
    ("licence", "held"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("", False),
        ("GPL-3.0-only OR MIT", True),
        ("GPL-3.0-only AND MIT", False),
        ("Zlib AND (GPL-3.0-only OR MIT)", True),
        ("Zlib AND (GPL-3.0-only AND MIT)", False),
        ("BSD License AND Apache-2.0", True),
        ("MPL 2.0 (MPL 2.0)", True),
    ],
)
def test_an_expression_holds_as_spdx_means_it(licence: str, held: bool) -> None:
    assert CHECK["holds"](licence, LISTS) is held


def test_every_installed_package_has_an_allowed_licence(capsys: pytest.CaptureFixture[str]) -> None:
    status = CHECK["main"]()
    assert status == 0, capsys.readouterr().out


def test_an_exception_that_nothing_needs_and_a_licence_that_is_not_allowed_are_told() -> None:
    lists = {"allowed": [], "means": [], "excepted": {"pytest": "a reason"}}
    told = CHECK["complaints"](lists)
    assert any(line.startswith("numpy: ") for line in told)
    assert not any(line.startswith("pytest: ") for line in told)
    needless = {"allowed": ["MIT"], "means": [], "excepted": {"pytest": "a reason"}}
    assert "pytest needs no exception" in CHECK["complaints"](needless)
