"""A Ray cluster that is started for a run, and ends with it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from ray_runs import SECONDS

pytest.importorskip("ray", reason="Ray is not installed: `make test-real` installs it and runs these tests")


def test_a_cluster_of_a_run_is_started_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MINI_AGENTIC_RL_CACHE", str(tmp_path / "cache"))
    script = textwrap.dedent(
        """
        from mini_agentic_rl.litagent import rollout
        from mini_agentic_rl.trainer import Trainer

        @rollout
        def agent(task):
            return float(task)

        strategy = {"type": "ray", "address": "local", "n_runners": 1}
        Trainer(algorithm="baseline", strategy=strategy, output_dir="run").fit(agent, [1, 2])
        """
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    before = set(Path("/tmp").glob("agentic-rl-*"))
    ended = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "Traceback" not in ended.stderr
    assert (tmp_path / "run" / "summary.json").exists()
    assert not (tmp_path / "home").exists()
    assert not any((tmp_path / "cache").glob("ray/*"))
    assert not {path.name for path in set(Path("/tmp").glob("agentic-rl-*")) - before}
