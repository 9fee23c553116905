"""`new` writes a project that runs at once: its own tests pass, and it trains."""

from __future__ import annotations

import sys

import pytest

from command_line import invoke
from mini_agentic_rl.commands import TrainConfig, train_job

FILES = ["README.md", "agent.py", "reward.py", "tasks/test.jsonl", "tasks/train.jsonl", "test_agent.py", "train.yaml"]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Return the folder of a project that the command has written."""
    folder = tmp_path_factory.mktemp("projects") / "my-agent"
    result = invoke("new", folder)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-2:] == [f"next: cd {folder}", "then: mini-agentic-rl train --config train.yaml"]
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == FILES
    return folder


@pytest.fixture
def inside(project, monkeypatch):
    """Work in the project, whose modules are forgotten afterwards."""
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", [str(project), *sys.path])
    for module in ("agent", "reward"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    yield project
    for module in ("agent", "reward", "test_agent"):
        sys.modules.pop(module, None)


def test_the_project_trains_as_it_is(inside, tiny_folder):
    read = invoke("train", "--config", "train.yaml", "--model", tiny_folder, "--print-config")
    assert read.exit_code == 0, read.output
    small = {"total_steps": 1, "tasks_per_step": 1, "samples_per_prompt": 2, "max_new_tokens": 4, "eval_size": 2}
    config = TrainConfig(
        agent="agent:Agent", dataset="tasks", model=tiny_folder, output_dir="outputs/run", console=False, **small
    )
    summary = train_job(config)
    assert [row["count"] for row in summary["accuracy"]] == [2, 2]
    assert (inside / "outputs" / "run" / "adapter").is_dir()


def test_the_tests_of_the_project_pass(inside, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they need none, and looking for them takes a second
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(inside), "-c", "/dev/null"]
    assert pytest.main([*options, str(inside)]) == 0


def test_only_a_new_or_an_empty_folder_is_taken(tmp_path):
    assert invoke("new", tmp_path).exit_code == 0
    assert invoke("new", tmp_path / "a" / "b`c").exit_code == 0
    assert (tmp_path / "a" / "b`c" / "README.md").read_text().startswith("# b c\n")
    before = sorted(tmp_path.rglob("*"))
    refused = invoke("new", tmp_path)
    assert refused.exit_code == 2
    assert "is not empty" in refused.output
    assert "is a file" in invoke("new", tmp_path / "agent.py").output
    assert sorted(tmp_path.rglob("*")) == before
