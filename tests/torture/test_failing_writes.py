"""The disk fails at every write, full and broken, once and for good: what was acknowledged is kept."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import SIZE, Attack

HERE = Path(__file__).parent
EVERY = max(1, round(1 / SIZE))

pytestmark = [
    pytest.mark.timeout(7200),
    pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD is of Linux"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="a library has to be compiled, and there is no C compiler"),
]


def _fail(attack: Attack, what: str, folder: Path) -> None:
    library = folder / "failing_writes.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, HERE / "failing_writes.c", "-ldl"], check=True)
    environment = {**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, HERE / "failing_disk.py", what, folder / "files", str(EVERY)]
    (folder / "files").mkdir()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3600, check=False)
    for line in done.stdout.splitlines():
        name, cause, seconds = json.loads(line)
        with attack.attempt(name):
            assert cause is None, cause
        attack.slowest_s = max(attack.slowest_s, seconds)
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_disk_fails_at_each_operation_of_a_checkpoint(attack: Attack, tmp_path: Path) -> None:
    _fail(attack, "checkpoints", tmp_path)


def test_the_disk_fails_at_each_write_of_a_store(attack: Attack, tmp_path: Path) -> None:
    _fail(attack, "store", tmp_path)
