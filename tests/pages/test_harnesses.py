"""docs/harnesses.md: the example of one's own is trained as it stands there, and its reward gives what it says."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mini_agentic_rl.recipes.harness import Ended, HarnessResult
from pages.shell import shell_line
from pages.snippets import fenced_blocks, python_block

PAGE = "docs/harnesses.md"
PROGRAM = python_block(PAGE, 'os.environ["TASK_FILE"]')
BREVITY = python_block(PAGE, "def brevity")
INSTRUCTION, TEST = [text for _, text in fenced_blocks(PAGE, "text")][:2]


@pytest.mark.skipif(os.name != "posix", reason="commands as agents need Linux or macOS: the example is left unchecked")
def test_the_example_of_ones_own_trains(here):
    (here / "agent.py").write_text(PROGRAM.text)
    for name in ("train/colour", "test/other"):
        (here / "tasks" / name / "tests").mkdir(parents=True)
        (here / "tasks" / name / "instruction.md").write_text(INSTRUCTION)
        (here / "tasks" / name / "tests" / "test.sh").write_text(TEST)
    few = ("--total-steps", "1", "--tasks-per-step", "1", "--samples-per-prompt", "2", "--cache-mib", "64", "--json")
    line = shell_line(PAGE, '--agent-command "python agent.py" --dataset tasks --total-steps 10')
    summary = json.loads(line.run(*few, "--agent-env", "PATH"))
    assert (summary["steps"], summary["dataset"], summary["untrained"]) == (1, "tasks", {})


def test_a_reward_of_ones_own_reads_the_folder(tmp_path: Path):
    brevity = BREVITY.run().names["brevity"]
    result = HarnessResult(Ended(0), tmp_path, [], [])
    assert brevity({}, result) == {"reward": 0.0, "length": 0.0}
    (tmp_path / "answer.txt").write_text("red")
    assert brevity({}, result) == {"reward": 1.0, "length": 3.0}
