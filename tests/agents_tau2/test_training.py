"""Training steps on a tiny model, as a person runs them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.scripted import ScriptedSampler
from gateway.small_tokenizer import small_tokenizer
from mini_agentic_rl import LLM, MiniGRPO, Trainer
from mini_agentic_rl.gateway.http.server import MiniLLMServer
from mini_agentic_rl.metrics import MetricsLogger
from mini_agentic_rl.recipes.tau2 import Tau2Agent
from mini_agentic_rl.recipes.tau2.tasks import load_tau2
from tiny import tiny_model, tiny_tokenizer

EXAMPLES = Path(__file__).parents[2] / "examples"


class Keep(MetricsLogger):
    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def log(self, metrics, *, step):
        self.rows.append(dict(metrics))


@pytest.fixture
def fickle_user():
    """Asks once in every conversation; then hangs up in every second one, and goes on asking in the others."""
    tokenizer = small_tokenizer()
    second_turns = iter(range(10_000))

    def says(request) -> str:
        if "And then?" not in tokenizer.decode(list(request.prompt_ids), skip_special_tokens=True):
            return "And then?"
        return "Bye. ###STOP###" if next(second_turns) % 2 else "And then?"

    server = MiniLLMServer(ScriptedSampler(tokenizer, says), tokenizer, model_name="user", port=0).start()
    yield LLM(endpoint=server.endpoint, model="user")
    server.stop(timeout=1)


def test_two_steps_train_the_assistant_alone(fickle_user):
    """No task is asked for that changes anything, so the reward is 1 where the customer hangs up in time."""
    tokenizer = tiny_tokenizer()
    model = tiny_model(len(tokenizer))
    model.config.max_position_embeddings = 8192
    kept = Keep()
    algorithm = MiniGRPO(
        model, tokenizer, total_steps=2, tasks_per_step=1, samples_per_prompt=4, max_new_tokens=6, lora=None
    )
    (task,) = [row for row in load_tau2("mock", "base") if row["id"] == "create_task_1_nl_eval"]
    Trainer(
        algorithm=algorithm,
        agent=Tau2Agent(max_steps=4),
        n_runners=1,
        logger=kept,
        initial_resources={"user_llm": fickle_user},
    ).fit(train_dataset=[task])
    steps = [row for row in kept.rows if "groups/count" in row]
    assert algorithm.summary["untrained"] == {}
    assert len(steps) == 2
    for step in steps:
        assert step["groups/with_signal"] == 1
        assert step["grad_norm"] > 0
        assert step["mismatch/mean_abs"] < 1e-4
        assert {"reward/completed/mean", "reward/steps/mean"} <= set(step)


def test_the_example_trains_a_folder(tiny_folder, tmp_path):
    folder = shutil.copytree(tiny_folder, tmp_path / "tiny")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 8192}))
    command = [
        *(sys.executable, str(EXAMPLES / "train_tau2_agent.py"), "--model", str(folder), "--domain", "mock"),
        *("--steps", "2", "--tasks-per-step", "1", "--samples-per-prompt", "2", "--eval-size", "2"),
        *("--max-steps", "4", "--max-new-tokens", "8", "--output-dir", str(tmp_path / "run")),
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    assert [line.split(":")[0].strip() for line in result.stdout.splitlines() if line.endswith("of 2")] == [
        "before",
        "after RL",
    ]
    assert "evaluation: after RL: 2 done in" in result.stderr
    assert (tmp_path / "run" / "adapter" / "adapter_model.safetensors").is_file()


def test_a_user_model_without_its_endpoint_is_refused():
    command = [sys.executable, str(EXAMPLES / "train_tau2_agent.py"), "--user-model", "gpt"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 2
    assert "--user-model and --user-base-url go together" in result.stderr
