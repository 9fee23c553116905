"""Invariant 8: killed and started again, a deterministic run ends with the weights of an unbroken one."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from processes import PythonProcess, run_python

SCRIPTS = Path(__file__).parent.parent / "algorithm"


@pytest.mark.parametrize("script", ["letters.py", "two_agents.py"])
def test_a_killed_run_ends_with_the_weights_of_an_unbroken_one(script, tmp_path):
    broken = tmp_path / "broken"
    with PythonProcess(SCRIPTS / script, str(tmp_path / "unbroken")) as process:
        # Step 2 has a checkpoint, step 3 is lost.
        run_python(SCRIPTS / script, str(broken), "--die-after", "3", expect=-signal.SIGKILL)
        assert sorted(path.name for path in (broken / "checkpoints").iterdir())[-1] == "step_2"
        resumed = json.loads(run_python(SCRIPTS / script, str(broken), "--resume")[0])
        assert process.wait() == 0
        unbroken = json.loads(process.stdout)
    assert unbroken["steps"] == resumed["steps"] == 4
    assert resumed["weights"] == unbroken["weights"]
