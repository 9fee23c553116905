"""What people get wrong: one clear line that names the setting, and nothing that was written before is damaged."""

from __future__ import annotations

import errno
import json
import os
import socket

import pytest

from command_line import run
from mini_agentic_rl.algorithm import checkpoint
from tiny import tiny_model, tiny_tokenizer

SMALL = (
    *("--eval-size", "1", "--sft-examples", "0", "--total-steps", "1", "--tasks-per-step", "1"),
    *("--samples-per-prompt", "2", "--max-new-tokens", "4", "--n-runners", "4"),
)

AGENTS = """
import time

from mini_agentic_rl import LitAgent


class Blocks(LitAgent):
    def rollout(self, task, resources, rollout):
        time.sleep(1)


class Silent(LitAgent):
    async def rollout_async(self, task, resources, rollout):
        return 1.0


class NeedsArguments(LitAgent):
    def __init__(self, name):
        super().__init__()


class NoAgent:
    pass
"""


def refused(*arguments):
    """Return the one line of a command that cannot work."""
    code, out, err = run(*arguments)
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert (code, out, len(lines)) == (2, "", 1), err
    assert err.endswith(lines[0] + "\n")
    assert "Traceback" not in err
    return lines[0]


def trained(*arguments):
    """Return the summary of a run that goes on in spite of everything, and its standard error."""
    code, out, err = run("train", *arguments, "--json")
    assert code == 0, err
    assert "Traceback" not in err
    return json.loads(out), err


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def finished(tiny_folder, tmp_path_factory):
    """A finished run of the tiny model, of no steps."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    trained("--model", tiny_folder, "--output-dir", folder, *SMALL, "--total-steps", "0")
    return folder


@pytest.fixture
def agents(tmp_path, monkeypatch):
    """A module of agents beside which the commands are run."""
    (tmp_path / "odd_agents.py").write_text(AGENTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "odd_agents", raising=False)


@pytest.mark.parametrize("command", ["train", "serve"])
def test_an_unknown_model(command, tmp_path):
    line = refused(command, "--model", tmp_path / "nowhere")
    assert "--model" in line
    assert "nowhere" in line
    (tmp_path / "empty").mkdir()
    assert "--model" in refused(command, "--model", tmp_path / "empty")


def test_a_mistake_does_not_cost_the_run_that_is_to_be_replaced(finished, tiny_folder, tmp_path):
    before = contents(finished)
    refused("train", "--model", tmp_path / "typo", "--output-dir", finished, "--overwrite")
    refused("train", "--model", tiny_folder, "--dataset", "typo.jsonl", "--output-dir", finished, "--overwrite")
    refused("train", "--model", tiny_folder, "--agent", "typo", "--output-dir", finished, "--overwrite")
    assert "--overwrite" in refused("train", "--model", tiny_folder, "--output-dir", finished, *SMALL)
    assert contents(finished) == before


def test_a_gpu_with_a_cpu_build_of_torch(tiny_folder, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.version.cuda", None)
    line = refused("train", "--model", tiny_folder, "--device", "cuda")
    assert "is a CPU build" in line
    assert "install a CUDA build" in line
    assert "--device cpu" in line


def test_a_port_in_use(tiny_folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refused("serve", "--model", tiny_folder, "--port", port)
    assert "--port" in line
    assert str(port) in line


@pytest.mark.parametrize(
    "command",
    [
        ("new",),
        ("serve", "--port", "0", "--learn-from-use"),
        ("train", *SMALL, "--output-dir"),
        ("sft", "--dataset", "chats.jsonl", "--output-dir"),
    ],
)
def test_a_folder_that_is_a_loop_of_links(command, tiny_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": messages}))
    (tmp_path / "loop").symlink_to("loop")
    model = () if command[0] == "new" else ("--model", tiny_folder)
    assert "loop cannot be written" in refused(*command, "loop", *model)


def test_an_adapter_of_another_model(finished, wide_folder, tmp_path):
    adapter = finished / "adapter"
    line = refused("eval", "--model", wide_folder, "--adapter", adapter, "--size", "1")
    assert "--adapter" in line
    assert "another base model" in line
    assert "--adapter" in refused("chat", "--model", wide_folder, "--adapter", tmp_path)


@pytest.mark.parametrize("name", ["odd_agents:Gone", "odd_agents:NeedsArguments", "odd_agents:NoAgent", "gone:Agent"])
def test_an_agent_that_cannot_be_had(name, agents, tiny_folder):
    line = refused("train", "--model", tiny_folder, "--agent", name)
    assert f"--agent: '{name}'" in line


def test_a_prompt_longer_than_the_context_costs_its_own_rollouts_only(tiny_folder, tmp_path):
    file = tmp_path / "tasks.jsonl"
    questions = ["What is 1 + 1?", "very " * 1500, "What is 3 + 3?", "so " * 1500, "What is 2 + 5?", "What is 7 + 1?"]
    file.write_text("".join(json.dumps({"question": text, "answer": 2}) + "\n" for text in questions))
    size = ("--tasks-per-step", "4", "--total-steps", "1")
    summary, err = trained("--model", tiny_folder, "--dataset", file, "--output-dir", tmp_path / "run", *SMALL, *size)
    assert summary["steps"] == 1
    (reason,) = {reason.split(" tokens, ")[0] for reason in summary["untrained"]}
    assert "maximum context length is 1024" in reason
    assert 0 < sum(summary["untrained"].values()) < 8
    assert "maximum context length" in err


@pytest.mark.parametrize(
    ("name", "reason"), [("Blocks", "timeout_seconds=0.3"), ("Silent", "the agent never called the model")]
)
def test_an_agent_that_always_misbehaves_ends_the_run_with_its_reason(name, reason, agents, tiny_folder, tmp_path):
    # A short time only for those that use it up: on a loaded machine 0.3 s can pass before any agent does anything.
    seconds = "0.3" if "timeout" in reason else "30"
    options = ("--agent", f"odd_agents:{name}", "--rollout-timeout", seconds, "--output-dir", tmp_path / "run")
    code, out, err = run("train", "--model", tiny_folder, *options, *SMALL, "--json")
    assert (code, out) == (2, "")
    last = err.strip().splitlines()[-1]
    assert last.startswith("error: all 2 rollouts of the training failed: ")
    assert reason in last
    assert err.count(reason) <= 3, err  # of the runner, of the first measurement, and here
    assert not (tmp_path / "run" / "summary.json").exists()


def test_a_full_disk_costs_one_checkpoint_and_nothing_else(tiny_folder, tmp_path, monkeypatch):
    folder, write = tmp_path / "run", checkpoint.write_checkpoint

    def full_at_step_1(target, policy, learner, progress, *more):
        write(target, policy, learner, progress, *more)
        if progress.step == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint, "write_checkpoint", full_at_step_1)
    steps = ("--total-steps", "2", "--checkpoint-every", "1")
    summary, err = trained("--model", tiny_folder, "--output-dir", folder, *SMALL, *steps)
    assert summary["steps"] == 2
    assert "Checkpoint of step 1 not written: no space left in the output folder" in " ".join(err.split())
    kept = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert kept == ["step_0", "step_2"]


def test_a_disk_full_at_the_end_is_one_line_and_the_run_can_be_resumed(tiny_folder, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    options = ("--model", tiny_folder, "--output-dir", folder, *SMALL)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("mini_agentic_rl.trainer.report.write_text", full)
        line = refused("train", *options)
    assert all(word in line for word in ("report.html", "--output-dir", "--resume"))
    assert not (folder / "summary.json").exists()
    summary, _ = trained(*options, "--resume")
    assert summary["steps"] == 1
    assert (folder / "report.html").exists()


def test_a_result_that_could_not_be_kept_is_not_computed(tiny_folder, tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file" / "result.json"):
        assert "--output" in refused("eval", "--model", tiny_folder, "--output", path)
        assert "--output" in refused("dataset", "units", "--output", path)
        pairs = ("--input", tmp_path / "file", "--output", tmp_path / "pairs.jsonl")
        assert "--report" in refused("convert-dpo", *pairs, "--report", path)


@pytest.mark.parametrize("command", ["serve", "tinker", "score-server"])
def test_other_computers_are_let_in_only_with_a_key(command, tiny_folder):
    line = refused(command, "--model", tiny_folder, "--host", "0.0.0.0")
    assert line.startswith("error: --host")
    assert "--api-key" in line


@pytest.mark.parametrize("command", ["train", "eval", "chat"])
def test_a_temperature_that_the_server_refuses_is_refused_at_once(command, tiny_folder):
    assert "--temperature 2.5" in refused(command, "--model", tiny_folder, "--temperature", "2.5")


def test_a_file_of_tasks_that_cannot_be_read_names_its_option(tiny_folder, tmp_path):
    for name, text in {"a.json": "[1", "b.json": "3", "c.parquet": "text", "d.csv": "question;answer\nq;1\n"}.items():
        (tmp_path / name).write_text(text)
        line = refused("train", "--model", tiny_folder, "--dataset", tmp_path / name)
        assert line.startswith(f"error: --dataset: {tmp_path / name}")
    assert "question;answer" in line


def test_a_tokenizer_of_another_model(tmp_path):
    tiny_model(64).save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    line = refused("sft", "--model", tmp_path / "model", "--max-samples", "2", "--output-dir", tmp_path / "run")
    assert "the tokenizer is that of another model" in line
