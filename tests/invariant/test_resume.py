"""Invariant 8: killed and started again, a deterministic run ends with the weights of an unbroken one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "algorithm" / "letters.py"


def _run(folder, *options, expect=0):
    result = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), *options], capture_output=True, text=True, timeout=150, check=False
    )
    assert result.returncode == expect, result.stderr[-3000:]
    return json.loads(result.stdout) if expect == 0 else None


def test_a_killed_run_ends_with_the_weights_of_an_unbroken_one(tmp_path):
    unbroken = _run(tmp_path / "unbroken")
    broken = tmp_path / "broken"
    _run(broken, "--die-after", "2", expect=-signal.SIGKILL)  # after the third step; step 2 has a checkpoint
    assert sorted(path.name for path in (broken / "checkpoints").iterdir())[-1] == "step_2"
    resumed = _run(broken, "--resume")
    assert unbroken["steps"] == resumed["steps"] == 4
    assert resumed["weights"] == unbroken["weights"]
