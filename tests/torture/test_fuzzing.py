"""Our readers of foreign text under coverage-guided fuzzing, where atheris is installed (`pip install atheris`)."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import SIZE, Attack

SECONDS = 600
SEEDS = [
    "max(1, 2)",
    "Answer: 1/2 km",
    "\\boxed{[1, 2]}",
    '<tool_call>{"name": "a", "arguments": {}}</tool_call>',
    "[a(b=1)]",
]


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed")
def test_readers_under_coverage_guided_fuzzing(attack: Attack, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, text in enumerate(SEEDS):
        (corpus / str(number)).write_bytes(b"\x01" + text.encode("utf-8"))
    command = [sys.executable, str(Path(__file__).with_name("fuzz_readers.py")), str(corpus)]
    seconds = attack.times(SECONDS) if SIZE >= 1 else 5
    options = [f"-max_total_time={seconds}", "-print_final_stats=1"]
    with attack.attempt("atheris"):
        done = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
    inputs = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    if inputs is not None and attack.row.held:
        attack.row.tried = attack.row.held = int(inputs[1])
