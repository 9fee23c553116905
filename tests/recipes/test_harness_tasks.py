"""Folders of tasks, and whole jobs with a command as their agent, on a tiny model."""

from __future__ import annotations

import json
import os
import runpy
import shlex
import sqlite3
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mini_agentic_rl.cli import app
from mini_agentic_rl.datasets import DatasetError
from mini_agentic_rl.environments import load_tasks
from mini_agentic_rl.recipes.harness.tasks import read_task_file, workspace_of

pytestmark = pytest.mark.skipif(os.name != "posix", reason="commands as agents need Linux or macOS: left unchecked")
EXAMPLES = Path(__file__).parents[2] / "examples" / "harness"
AGENT = f"{shlex.quote(sys.executable)} {shlex.quote(str(Path(__file__).with_name('command_agent.py')))}"


def written(root: Path, *names: str) -> Path:
    """A folder of tasks, each worth 1 where the answer is not empty."""
    for name in names:
        (root / name / "tests").mkdir(parents=True)
        (root / name / "instruction.md").write_text(f"Say something about {name}.\n")
        (root / name / "tests" / "test.sh").write_text("test -s answer.txt\n")
    return root


def command(*words: object) -> str:
    """What a command of ours prints, with its exit code where that is not 0."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.stdout if result.exit_code == 0 else f"{result.exit_code}: {result.output}"


def test_tasks_lie_side_by_side_or_in_folders_of_their_splits(tmp_path):
    flat = written(tmp_path / "flat", *(f"t{number}" for number in range(10)))
    rows = {split: load_tasks(str(flat), split, None, 0, [1]) for split in ("train", "val", "test")}
    assert {split: len(found) for split, found in rows.items()} == {"train": 8, "val": 1, "test": 1}
    assert rows["test"][0]["question"] == f"Say something about {rows['test'][0]['id']}."
    parted = written(tmp_path / "parted", "train/a", "train/b", "test/c")
    assert [row["id"] for row in load_tasks(str(parted), "train", None, 0, [1])] == ["train/a", "train/b"]
    assert [row["id"] for row in load_tasks(str(parted), "test", None, 0, [1])] == ["test/c"]


def test_what_a_task_says_of_itself_is_read_and_its_mistakes_are_named(tmp_path):
    folder = written(tmp_path, "a") / "a"
    (folder / "environment").mkdir()
    assert workspace_of(folder) == folder / "environment"
    (folder / "workspace").mkdir()
    assert workspace_of(folder) == folder / "workspace"
    (folder / "task.toml").write_text(
        '[agent]\ntimeout_sec = 5\n[verifier]\ncommand = "true"\n[metadata]\nauthor = "x"\n'
    )
    said = read_task_file(folder)
    assert (said.agent.timeout_sec, said.verifier.command) == (5.0, "true")
    for text, complaint in {
        "[agent]\ntimeout_sec = 0\n": r"task.toml: agent.timeout_sec: Input should be greater than 0",
        "[agent\n": r"task.toml: ",
    }.items():
        (folder / "task.toml").write_text(text)
        with pytest.raises(DatasetError, match=complaint):
            load_tasks(str(tmp_path), "train", None, 0, [1])
    (folder / "task.toml").unlink()
    (folder / "instruction.md").write_text(" \n")
    with pytest.raises(DatasetError, match=r"instruction.md is empty"):
        load_tasks(str(tmp_path), "train", None, 0, [1])


def test_a_command_is_trained_and_measured_on_a_folder_of_tasks(tiny_folder, tmp_path):
    tasks = written(tmp_path / "tasks", "train/a", "train/b", "test/c")
    asked = ("--agent-command", AGENT, "--dataset", tasks, "--model", tiny_folder, "--max-new-tokens", "6", "--json")
    told = command(
        *("train", *asked, "--cache-mib", "64", "--output-dir", tmp_path / "run", "--eval-size", "1"),
        *("--total-steps", "1", "--tasks-per-step", "1", "--samples-per-prompt", "2"),
    )
    summary = json.loads(told)
    assert (summary["steps"], summary["untrained"]) == (1, {})
    assert [row["name"] for row in summary["accuracy"]] == ["before", "after RL"]
    with sqlite3.connect(tmp_path / "run" / "rollouts.db") as store:
        kept = "\n".join(store.iterdump())
    assert kept.count("characters") >= 2 * summary["steps"]  # the output of each command is on its span
    assert '"agent command"' in kept
    assert '"test command"' in kept
    measured = json.loads(command("eval", *asked, "--size", "1", "--test-command", "true"))
    assert measured["accuracy"][0]["correct"] == 1


def test_a_command_that_never_calls_the_model_is_told_so(tiny_folder, tmp_path):
    tasks = written(tmp_path / "tasks", "test/c")
    asked = ("--dataset", tasks, "--model", tiny_folder, "--size", "1", "--json")
    told = command("eval", *asked, "--agent-command", "sh -c 'echo no key >&2; exit 4'")
    assert told.startswith("2: ")
    assert told.endswith(
        "HarnessError: the command ended with exit code 4 and never called the model: does it read OPENAI_BASE_URL or "
        "ANTHROPIC_BASE_URL? Its last words: no key\n"
    )
    told = command("eval", *asked, "--agent-command", "true", "--agent", "math")
    assert told == "2: error: --agent-command: a command is the agent: leave --agent and --env out\n"
    told = command("eval", *asked, "--sandbox-seconds", "3")
    assert told.startswith("2: error: --sandbox-seconds: is for an agent that is a command: give --agent-command")
    told = command("train-sql", "--agent-command", "true", "--output-dir", tmp_path / "run")
    assert told == "2: error: --agent-command: the SQL agent is no command: leave one of the two out\n"


def test_the_example_of_small_tasks_judges_a_solution(tmp_path, monkeypatch):
    story = runpy.run_path(str(EXAMPLES / "one_liners.py"))
    story["main"](tmp_path)
    assert len(load_tasks(str(tmp_path), "train", None, 0, [1])) == 60
    task = load_tasks(str(tmp_path), "test", 1, 0, [1])[0]
    checks = Path(task["folder"]) / "tests" / "check.py"
    right = checks.read_text().partition("str([")[2].partition(" for x in")[0]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REWARD_FILE", str(tmp_path / "reward"))
    for solution, reward in (("lambda x: {}", "1"), ("lambda x: None", "0.1"), ("missing", "0")):
        Path("solution.py").write_text("f = " + solution.format(right))
        runpy.run_path(str(checks))
        assert Path("reward").read_text() == reward
