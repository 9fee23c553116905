"""`make audit` tells what an advisory service knows of the installed packages, and which it was not asked about."""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

DEV = Path(__file__).parent.parent / "dev"
CHECK = runpy.run_path(str(DEV / "vulnerabilities.py"))
pytestmark = pytest.mark.skipif(os.name != "posix", reason="the stand-in for pip-audit is a script with a first line")


def pip_audit(folder: Path, answers: str) -> str:
    """Write a program with pip-audit's command line and form of an answer: no service can be asked in a test."""
    program = folder / "pip-audit"
    program.write_text(
        f"""#!{sys.executable}
import json, sys
packages = [line.strip().split("==") for line in open(sys.argv[sys.argv.index("--requirement") + 1])]
{answers}
print(json.dumps({{"dependencies": [answer(name, version) for name, version in packages], "fixes": []}}))
"""
    )
    program.chmod(0o755)
    return str(program)


def knows(found: dict[str, Any], skipped: dict[str, str]) -> str:
    """Return a service's answers: vulnerabilities of some packages, no word of others."""
    return f"""
found, skipped = json.loads({json.dumps(found)!r}), json.loads({json.dumps(skipped)!r})
def answer(name, version):
    if name in skipped:
        return {{"name": name, "skip_reason": skipped[name]}}
    return {{"name": name, "version": version, "vulns": found.get(name, [])}}
"""


HOLE = {"numpy": [{"id": "GHSA-1", "fix_versions": ["9.9"], "aliases": [], "description": "a hole"}]}


@pytest.mark.parametrize(
    ("answers", "status", "told"),
    [
        (knows({}, {}), 0, "0 known"),
        (knows(HOLE, {}), 1, "GHSA-1, mended in 9.9"),
        (knows({}, {"numpy": "not found"}), 3, "NOT CHECKED, 1 packages:"),
        (knows(HOLE, {"torch": "not found"}), 1, "NOT CHECKED, 1 packages:"),
        (knows({}, {"pip": "not found"}), 3, "NOT CHECKED, none of"),
        ("raise SystemExit('no route to host')", 3, "nothing answers (no route to host)"),
    ],
)
def test_the_exit_status_says_what_was_found_and_whether_all_was_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], answers: str, status: int, told: str
) -> None:
    assert CHECK["main"](pip_audit(tmp_path, answers)) == status
    assert told in capsys.readouterr().out


def test_a_program_that_is_not_there_is_named_and_nothing_counts_as_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert CHECK["main"](str(tmp_path / "pip-audit")) == 3
    assert "NOT CHECKED, none of" in (told := capsys.readouterr().out)
    assert "not installed here" in told


@pytest.mark.parametrize(
    ("licence", "known", "status", "verdict"),
    [
        (0, 0, 0, "nothing found"),
        (1, 0, 1, "something was found"),
        (0, 3, 3, "NOT EVERYTHING"),
        (1, 3, 1, "something"),
    ],
)
def test_the_last_line_of_the_audit_is_its_verdict(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    licence: int,
    known: int,
    status: int,
    verdict: str,
) -> None:
    monkeypatch.syspath_prepend(str(DEV))
    audit = runpy.run_path(str(DEV / "audit.py"))
    monkeypatch.setattr(audit["licences"], "main", lambda: licence)
    monkeypatch.setattr(audit["vulnerabilities"], "main", lambda *_: known)
    assert audit["main"]("pip-audit", "--vulnerability-service", "osv") == status
    assert verdict in capsys.readouterr().out.splitlines()[-1]
    with pytest.raises(SystemExit):
        audit["main"]("--help")
    assert "not everything could be checked" in capsys.readouterr().out


def test_packages_are_asked_about_by_the_versions_that_an_index_has() -> None:
    packages = CHECK["installed"]()
    assert "numpy" in packages
    assert CHECK["OURS"] not in {name.lower() for name in packages}
    assert not [version for version in packages.values() if "+" in version]
