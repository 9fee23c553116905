"""What holds for the project as a whole: a light import, the architecture page, and a README that is true."""

from __future__ import annotations

import ast
import configparser
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
READMES = ("README.md", "README.zh-CN.md")
TEXT_SUFFIXES = {"", ".cfg", ".ini", ".json", ".md", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml"}


def _project_files() -> Iterator[Path]:
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [
            name
            for name in folders
            if name not in (".git", "outputs", "build", "dist", "node_modules", "__pycache__")
            and not name.endswith((".egg-info", "_cache"))
            and not (Path(folder) / name / "pyvenv.cfg").exists()
        ]
        for name in files:
            path = Path(folder) / name
            if path.suffix in TEXT_SUFFIXES:
                yield path


def test_what_mypy_skips_of_other_packages_is_imported_nowhere():
    overrides = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]["overrides"]
    (skipped,) = (one["module"] for one in overrides if one.get("follow_imports_for_stubs"))
    names = "|".join(re.escape(name.removesuffix(".*")) for name in skipped)
    line = re.compile(rf"^ *(?:from|import) (?:{names})\b", re.MULTILINE)
    assert line.search("    from torch.fx import x")
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        if line.search(text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))  # it may stand in the text of a program
        if isinstance(node, ast.Import | ast.ImportFrom) and line.match(ast.unparse(node))
    ]
    assert found == [], "take it from the list in pyproject.toml, or its types are not looked at"


@pytest.mark.parametrize("statement", ["import mini_agentic_rl", "from mini_agentic_rl import Trainer"])
def test_importing_the_package_is_quick_and_needs_no_torch(statement):
    program = (
        f"import sys, time; start = time.process_time(); {statement}; print(time.process_time() - start, "
        "*[name for name in ('torch', 'transformers', 'peft', 'datasets') if name in sys.modules])"
    )
    for _ in range(3):  # a loaded machine makes a try slow, not all of them
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        seconds, *loaded = done.stdout.split()
        assert loaded == []
        if float(seconds) < 2.0:  # of processor time
            return
    pytest.fail(f"{statement} took {seconds} s of processor time")


def test_the_repository_names_no_package_index():
    forbidden = re.compile(
        "|".join(["index-" + "url", "find-" + "links", "pypi" + r"\.org", "whl" + "/cpu", "trusted-" + "host"])
    )
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in _project_files()
        for match in forbidden.finditer(path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert found == []


def test_the_links_of_both_readmes_are_the_same():
    english, chinese = (
        re.findall(r"\]\((?!README)([^)]+)\)", (ROOT / page).read_text(encoding="utf-8")) for page in READMES
    )
    assert english == [link.replace(".zh.md", ".md") for link in chinese]


def test_both_readmes_hold_the_same_python():
    english, chinese = (
        re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL) for page in READMES
    )
    assert english == chinese


def test_the_rooms_of_the_architecture_page_exist():
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    package = ROOT / "src" / "mini_agentic_rl"
    named = set(re.findall(r"^\|\s*\d+\s*\|(.*?)\|", text, re.MULTILINE))
    rooms = {room for cell in named for room in re.findall(r"`([a-z_]+(?:\.py|/))`", cell)}
    assert rooms
    assert [room for room in sorted(rooms) if not (package / room).exists()] == []


def test_the_architecture_page_has_every_room_on_its_floor():
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter", encoding="utf-8")
    layers = contracts["importlinter:contract:floors"]["layers"].split("\n")
    checked = [set(re.findall(r"\w+", layer)) - {"__main__"} for layer in reversed(layers)]
    drawn: dict[int, set[str]] = defaultdict(set)
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    for floor, rooms in re.findall(r"^\| (\d+) \|(.*?)\|", text, re.MULTILINE):
        drawn[int(floor)] |= set(re.findall(r"`(\w+)(?:/|\.py)`", rooms))
    assert [drawn[floor] for floor in sorted(drawn)] == [rooms for rooms in checked if rooms]


def test_the_licence_is_the_one_that_the_package_declares():
    assert 'license = "Apache-2.0"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
