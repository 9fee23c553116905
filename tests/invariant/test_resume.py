"""Invariant 8: killed and started again, a deterministic run ends with the weights of an unbroken one."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from processes import run_python

SCRIPTS = Path(__file__).parent.parent / "algorithm"


@pytest.mark.parametrize("script", ["letters.py", "two_agents.py"])
def test_a_killed_run_ends_with_the_weights_of_an_unbroken_one(script, tmp_path):
    def run(folder, *options, expect=0):
        return run_python(SCRIPTS / script, str(folder), *options, expect=expect)[0]

    unbroken = json.loads(run(tmp_path / "unbroken"))
    broken = tmp_path / "broken"
    run(broken, "--die-after", "3", expect=-signal.SIGKILL)  # step 2 has a checkpoint, step 3 is lost
    assert sorted(path.name for path in (broken / "checkpoints").iterdir())[-1] == "step_2"
    resumed = json.loads(run(broken, "--resume"))
    assert unbroken["steps"] == resumed["steps"] == 4
    assert resumed["weights"] == unbroken["weights"]
