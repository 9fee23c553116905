"""docs/environments.md: an environment of one's own is trained as it is shown, and our tasks are those of verifiers."""

from __future__ import annotations

import json

import pytest

from pages.snippets import python_block

ECHO = python_block("docs/environments.md", "class Echo:")
OURS = python_block("docs/environments.md", "vf.resolve_env_config")


def test_an_environment_of_ones_own_is_measured_and_trained(here):
    few = '"embedded", total_steps=1, tasks_per_step=1, samples_per_prompt=2, max_new_tokens=4'
    ECHO.run({'"embedded", total_steps=10': few, '"train", 64': '"train", 2', '"test", 16': '"test", 2'})
    summary = json.loads((here / "outputs/echo/summary.json").read_text())
    assert summary["steps"] == 1
    assert [row["count"] for row in summary["accuracy"]] == [2, 2]


def test_our_tasks_are_those_of_a_taskset():
    pytest.importorskip(
        "verifiers", reason="verifiers is not installed: `make test-real` installs it and runs this test"
    )
    env = OURS.run({'"size": 200': '"size": 2'}).names["env"]
    assert [task.data.world for task in env.taskset] == ["guess", "guess"]
