"""The agents of README.md and docs/your-agent.md learn with the embedded model: `make test-embedded`, minutes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from mini_agentic_rl.metrics import read_metrics
from mini_agentic_rl.policy import load_model, pull_embedded
from pages.snippets import Block, fenced_blocks

FIRST = Block("README.md", "@llm_rollout")
LISTER = Block("docs/your-agent.md", 'output_dir="outputs/lister"')
MATH = Block("docs/your-agent.md", "hooks=[MathRewardHook()]")

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module", autouse=True)
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


def accuracies(run) -> list[float]:
    """Return the accuracies of a run folder in the order in which they were measured, as shares of 1.

    Raises:
        AssertionError: the folder is not complete, or its files say different things.
    """
    for name in ("config.json", "metrics.jsonl", "summary.json", "report.html"):
        assert (run / name).stat().st_size > 0, name
    load_model(str(run / "adapter"))
    logged = [row["accuracy"] for row in read_metrics(run / "metrics.jsonl") if "accuracy" in row]
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert [row["accuracy"] for row in summary["accuracy"]] == pytest.approx(logged)
    return logged


def test_the_first_agent_of_the_readme_learns(run_as_script, tmp_path):
    output = run_as_script(FIRST.text)
    before, after = accuracies(tmp_path / "outputs/reviews")
    assert before < 0.3, output
    assert after >= 0.8, output
    shown = [
        line for _, block in fenced_blocks("README.md", "text") for line in block.splitlines() if "accuracy" in line
    ]
    assert len(shown) == 2
    for line in shown:
        beginning = line.partition("accuracy")[0].split()
        assert re.search(rf"{' '.join(beginning)}\s+accuracy \d+\.\d %", output), f"{line}\n{output}"


def test_a_class_learns_to_list(run_as_script, tmp_path):
    output = run_as_script(LISTER.text)
    before, after = accuracies(tmp_path / "outputs/lister")
    assert after > before, output


def test_an_agent_with_a_hook_imitates_and_is_then_reinforced(run_as_script, tmp_path):
    output = run_as_script(MATH.text)
    before, imitated, after = accuracies(tmp_path / "outputs/math")
    assert before < 0.1, output
    assert imitated > 0, output
    assert after > 0.1, output
