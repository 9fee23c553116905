"""Invariant 8: killed and started again, a deterministic run ends with the weights of an unbroken one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent / "algorithm"


def _run(script, folder, *options, expect=0):
    command = [sys.executable, str(SCRIPTS / script), str(folder), *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert result.returncode == expect, result.stderr[-3000:]
    return json.loads(result.stdout) if expect == 0 else None


@pytest.mark.parametrize("script", ["letters.py", "two_agents.py"])
def test_a_killed_run_ends_with_the_weights_of_an_unbroken_one(script, tmp_path):
    unbroken = _run(script, tmp_path / "unbroken")
    broken = tmp_path / "broken"
    _run(script, broken, "--die-after", "2", expect=-signal.SIGKILL)  # after the third step; step 2 has a checkpoint
    assert sorted(path.name for path in (broken / "checkpoints").iterdir())[-1] == "step_2"
    resumed = _run(script, broken, "--resume")
    assert unbroken["steps"] == resumed["steps"] == 4
    assert resumed["weights"] == unbroken["weights"]
