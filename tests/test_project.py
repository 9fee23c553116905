"""What holds for the project as a whole: a light import, the architecture page, and a README that is true."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
READMES = ("README.md", "README.zh-CN.md")


IMPORTS = """
import json, sys, time
start = time.process_time()
heavy = ("torch", "transformers", "peft", "datasets")
loaded = []
for statement, unneeded in (
    ("import mini_agentic_rl", heavy),
    ("import mini_agentic_rl.logging; from mini_agentic_rl.store import SqlLightningStore", (*heavy, "starlette")),
    ("from mini_agentic_rl import Trainer", heavy),
    ("from mini_agent_lighting import Trainer; import mini_agent_lighting.types", heavy),
):
    exec(statement)
    loaded += [(statement, name) for name in unneeded if name in sys.modules]
print(json.dumps((time.process_time() - start, loaded)))
"""


def test_importing_the_package_is_quick_and_needs_no_torch():
    for _ in range(3):  # a loaded machine makes a try slow, not all of them
        done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        seconds, loaded = json.loads(done.stdout)
        assert loaded == []
        if seconds < 2.0:  # of processor time
            return
    pytest.fail(f"the imports took {seconds} s of processor time")


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


def test_the_architecture_page_has_every_room_on_its_floor():
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter", encoding="utf-8")
    layers = contracts["importlinter:contract:floors"]["layers"].split("\n")
    checked = [set(re.findall(r"\w+", layer)) - {"__main__"} for layer in reversed(layers)]
    drawn: dict[int, set[str]] = defaultdict(set)
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    for floor, rooms in re.findall(r"^\| (\d+) \|(.*?)\|", text, re.MULTILINE):
        named = re.findall(r"`(\w+(?:/|\.py))`", rooms)
        assert [room for room in named if not (ROOT / "src" / "mini_agentic_rl" / room).exists()] == []
        drawn[int(floor)] |= {room.removesuffix("/").removesuffix(".py") for room in named}
    assert [drawn[floor] for floor in sorted(drawn)] == [rooms for rooms in checked if rooms]
