"""Trainings in processes of their own: started, watched, stopped, and bounded in number."""

from __future__ import annotations

import json
import os
import signal
import stat
import time

import pytest

from mini_agentic_rl.integrations.hello_agents.training_tool.training import LOG_FILE, running
from mini_agentic_rl.tools import RLTrainingTool

LONG = {"algorithm": "grpo", "max_steps": 200, "batch_size": 2, "samples_per_prompt": 2, "max_new_tokens": 8}


def slow(completions, **columns):
    """A reward that takes its time, and differs."""
    time.sleep(0.05)
    return [len(text) / 100 for text in completions]


def tasks(count):
    return [{"prompt": [{"role": "user", "content": f"Say {n}"}], "ground_truth": str(n)} for n in range(count)]


def ask(tool, **parameters):
    answer = json.loads(tool.run(parameters))
    assert answer["success"], answer
    return answer


def wait_for(tool, folder, good, timeout=120.0):
    end = time.monotonic() + timeout
    while not good(state := ask(tool, action="status", output_dir=folder)):
        assert time.monotonic() < end, state
        assert state["state"] in ("running", "finished"), (state, ask(tool, action="logs", output_dir=folder))
        time.sleep(0.1)
    return state


@pytest.fixture
def tool(tmp_path, tiny_folder):
    tool = RLTrainingTool(tmp_path, model_folders=[tiny_folder])
    tool.register_dataset("tasks", tasks(4))
    tool.register_reward_function("slow", slow)
    yield tool
    for process in running(tmp_path).values():
        process.kill()
        process.wait(10)


def test_a_training_is_started_watched_stopped_and_gone_on_with(tool, tiny_folder, tmp_path):
    options = {**LONG, "model_name": tiny_folder, "dataset": "tasks", "custom_reward": "slow", "output_dir": "run"}
    started = ask(tool, action="start", **options, eval_samples=0)
    assert (started["state"], started["output_dir"]) == ("running", str(tmp_path / "run"))
    assert os.name != "posix" or stat.S_IMODE((tmp_path / "run" / LOG_FILE).stat().st_mode) == 0o600

    other = RLTrainingTool(tmp_path)  # of another agent, or the same one after it was started again
    answer = json.loads(other.run({"action": "start", **options, "custom_reward": None, "output_dir": "second"}))
    assert "registered" in answer["message"] or "at most 1 trainings run at once" in answer["message"]
    answer = json.loads(other.run({"action": "start", "algorithm": "sft", "dataset": "arithmetic", "output_dir": "b"}))
    assert "at most 1 trainings run at once" in answer["message"]
    assert str(tmp_path / "run") in answer["message"]

    state = wait_for(other, "run", lambda state: state.get("last_metrics", {}).get("step", 0) >= 2)
    assert state["algorithm"] == "grpo"
    assert "reward/mean" in state["last_metrics"]
    (listed,) = ask(other, action="status")["trainings"]
    assert (listed["output_dir"], listed["state"]) == (str(tmp_path / "run"), "running")
    assert any(line.startswith("step") for line in ask(other, action="logs")["lines"])

    stopped = ask(other, action="stop", wait_seconds=120)  # a step and a checkpoint take long on a loaded machine
    assert stopped["state"] == "stopped", stopped
    assert "resume" in stopped["message"]
    assert ask(tool, action="status")["trainings"][0]["state"] == "stopped"
    checkpoints = [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()]
    newest = max(int(name.removeprefix("step_")) for name in checkpoints)
    assert newest >= 2
    again = ask(other, action="stop", output_dir="run")
    assert "does not run" in again["message"]

    ask(tool, action="start", **options, eval_samples=0, resume=True)
    wait_for(tool, "run", lambda state: state.get("last_metrics", {}).get("step", 0) > newest + 1)
    told = "\n".join(ask(tool, action="logs", lines=200)["lines"])
    assert f"resumed after step {newest}" in told

    (process,) = running(tmp_path).values()
    os.kill(process.pid, signal.SIGKILL)
    end = time.monotonic() + 60
    while (state := ask(tool, action="status", output_dir="run"))["state"] == "running":
        assert time.monotonic() < end
        time.sleep(0.05)
    assert state["state"] == "failed"
    assert "ended without a result" in state["message"]


def test_a_reward_that_cannot_travel_is_told(tool, tmp_path):
    with (tmp_path / "file").open("w") as file:

        def writes(completions, **columns):
            file.write("x")
            return [0.0 for _ in completions]

        answer = json.loads(tool.run({"action": "start", **LONG, "dataset": "tasks", "custom_reward": writes}))
    assert not answer["success"]
    assert "file" in answer["message"]
    assert "cannot be sent to another process" in answer["message"]
