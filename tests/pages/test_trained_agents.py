"""The agents that README and docs/ show are trained, and leave the run folders that the pages name.

With a tiny model nothing is learnt within a second; that some of these agents learn is shown by tests/embedded.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from mini_agentic_rl import InMemoryLightningStore
from mini_agentic_rl.algorithm.losses import LOSSES
from mini_agentic_rl.metrics import read_metrics
from mini_agentic_rl.recipes.harness import Ended, HarnessResult
from mini_agentic_rl.semconv import CompletionSpanAttributes
from pages.shell import shell_line
from pages.snippets import complete_run, fenced_blocks, python_block
from processes import free_port

YOURS = "docs/your-agent.md"
FEW = "total_steps=1, tasks_per_step=2, samples_per_prompt=2"
ONE_TASK = "total_steps=1, tasks_per_step=1, samples_per_prompt=2"
TRAINED = {
    "a function": (python_block("README.md", "@llm_rollout"), {"total_steps=15": FEW}, "reviews", 16),
    "a class": (
        python_block(YOURS, 'output_dir="outputs/lister"'),
        {"total_steps=10": FEW, "max_new_tokens=24": "max_new_tokens=8"},
        *("lister", 4),
    ),
    "a hook, after imitation": (
        python_block(YOURS, "hooks=[MathRewardHook()]"),
        {
            "total_steps=3": f"{FEW}, max_new_tokens=4",
            "eval_size=40": "eval_size=2",
            "n_runners=64": "n_runners=4",
            "WarmStart(demonstration, TOOLS)": "WarmStart(demonstration, TOOLS, WarmStartSettings(examples=4))",
        },
        *("math", 2),
    ),
    "an environment": (
        python_block("docs/environments.md", "class Echo:"),
        {
            '"embedded", total_steps=10': f'"embedded", {ONE_TASK}, max_new_tokens=4',
            '"train", 64': '"train", 2',
            '"test", 16': '"test", 2',
        },
        *("echo", 2),
    ),
}
FROM_TRL = python_block("docs/migration.md", "def reward_short(")
TRL_ENVIRONMENT = python_block("docs/trl.md", "class Till:")
TRL_SAMPLER = python_block("docs/trl.md", "TRLSampler()")
PROGRAM = python_block("docs/migration.md", "rollout_environment()")
KEPT_CLIENT = python_block(YOURS, "gateway_port=8000")
SEVERAL = python_block(YOURS, 'with agent("planner"):')

LANGCHAIN = {
    name: python_block(YOURS, part)
    for name, part in {
        "agent": "def make_agent(",
        "rollout": "async def solve(",
        "tried": "total_steps=0",
        "trained": 'output_dir="outputs/langchain"',
        "used": "agent.invoke(",
    }.items()
}

OPENAI = "docs/tutorials/openai-agent.md"
AGENT = python_block(OPENAI, "def route(")
MAILS = python_block(OPENAI, "SENTENCES = {")
PAID = python_block(OPENAI, "def reward(")
ROUTER = python_block(OPENAI, 'output_dir="outputs/router"')
USED = python_block(OPENAI, "localhost:8000")

REWARD = "docs/tutorials/add-a-reward.md"
REWARD_PARTS = [python_block(REWARD, part) for part in ("def is_json(", "reward = WeightedSum(", "scores = reward(")]
REWARDED = python_block(REWARD, "hooks=[RewardHook(reward)]")

LOSS = "docs/tutorials/add-a-loss.md"
LOSS_PARTS = [python_block(LOSS, part) for part in ("def smooth(", "def gradient(")]
LEARNT = python_block(LOSS, 'register_loss("smooth")')

HARNESSES = "docs/harnesses.md"
HARNESS_PROGRAM = python_block(HARNESSES, 'os.environ["TASK_FILE"]')
BREVITY = python_block(HARNESSES, "def brevity")
INSTRUCTION, TEST = [text for _, text in fenced_blocks(HARNESSES, "text")][:2]

AGENT_OF_A_PROGRAM = """
import json, os, urllib.request
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
messages = [{"role": "user", "content": os.environ["QUESTION"]}]
body = json.dumps({"model": "embedded", "messages": messages, "max_tokens": 4}).encode()
headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
reply = json.load(urllib.request.urlopen(urllib.request.Request(url, body, headers)))
print(reply["choices"][0]["message"]["content"])
"""


@pytest.mark.parametrize("kind", TRAINED)
def test_an_agent_is_measured_trained_and_measured_again(here, kind):
    block, sizes, name, measured = TRAINED[kind]
    block.run(sizes, before="from mini_agentic_rl.algorithm import WarmStartSettings")
    assert {row["count"] for row in complete_run(here / "outputs" / name)["accuracy"]} == {measured}


def test_a_reward_function_and_an_environment_of_trl_are_trained(here):
    sizes = "samples_per_prompt=2, tasks_per_step=1, total_steps=1, max_new_tokens=4"
    FROM_TRL.run({"samples_per_prompt=8, tasks_per_step=4, total_steps=10, max_new_tokens=32": sizes})
    few = "max_steps=1, per_device_train_batch_size=1, gradient_accumulation_steps=1, samples_per_prompt=2"
    TRL_ENVIRONMENT.run({"max_steps=10": few, "max_new_tokens=64": "max_new_tokens=4"})
    for name in ("from-trl", "till/grpo"):
        assert json.loads((here / "outputs" / name / "summary.json").read_text())["steps"] == 1
    assert (here / "outputs/till/adapter_model.safetensors").is_file()


def test_trl_trains_on_what_our_engine_has_sampled(here):
    pytest.importorskip("trl", reason="trl is not installed: its trainer with our engine is left unchecked")
    ran = TRL_SAMPLER.run({"max_steps=10": "max_steps=1, use_cpu=True", "length=48": "length=4"})
    assert ran.names["trainer"].state.global_step == 1


def test_a_program_that_finds_its_model_in_the_environment_is_trained(here):
    (here / "agent.py").write_text(AGENT_OF_A_PROGRAM)
    ran = PROGRAM.run({"total_steps=10": ONE_TASK, "max_new_tokens=16": "max_new_tokens=4"})
    assert ran.names["algorithm"].summary["steps"] == 1


@pytest.mark.skipif(os.name != "posix", reason="commands as agents need Linux or macOS: the example is left unchecked")
def test_a_command_is_trained_on_a_folder_of_tasks(here):
    (here / "agent.py").write_text(HARNESS_PROGRAM.text)
    for name in ("train/colour", "test/other"):
        (here / "tasks" / name / "tests").mkdir(parents=True)
        (here / "tasks" / name / "instruction.md").write_text(INSTRUCTION)
        (here / "tasks" / name / "tests" / "test.sh").write_text(TEST)
    few = ("--total-steps", "1", "--tasks-per-step", "1", "--samples-per-prompt", "2", "--cache-mib", "64", "--json")
    line = shell_line(HARNESSES, '--agent-command "python agent.py" --dataset tasks --total-steps 10')
    summary = json.loads(line.run(*few, "--agent-env", "PATH"))
    assert (summary["steps"], summary["dataset"], summary["untrained"]) == (1, "tasks", {})


def test_a_reward_function_of_a_command_reads_its_folder(tmp_path: Path):
    brevity = BREVITY.run().names["brevity"]
    result = HarnessResult(Ended(0), tmp_path, [], [])
    assert brevity({}, result) == {"reward": 0.0, "length": 0.0}
    (tmp_path / "answer.txt").write_text("red")
    assert brevity({}, result) == {"reward": 1.0, "length": 3.0}


@pytest.mark.parametrize(
    ("block", "sizes", "agents"),
    [
        (KEPT_CLIENT, {"max_tokens=24": "max_tokens=8", "8000": "PORT"}, [None]),
        (SEVERAL, {"max_new_tokens=24": "max_new_tokens=8"}, ["planner", "lister"]),
    ],
    ids=["at the plain address", "by the names of the agents"],
)
def test_the_calls_of_each_rollout_are_recorded(here, block, sizes, agents):
    store = InMemoryLightningStore()
    few = {"total_steps=10": FEW, "n_runners=16": "n_runners=16, store=store", **sizes}
    few = {old: new.replace("PORT", str(free_port())) for old, new in few.items()}
    assert block.run(few, given={"store": store}).names["algorithm"].summary["steps"] == 1

    async def calls() -> list[list[str | None]]:
        """Return the agents of the model calls of each rollout, in order."""
        spans = [await store.query_spans(rollout.rollout_id) for rollout in await store.query_rollouts()]
        names = CompletionSpanAttributes
        return [
            [span.attributes.get(names.AGENT_NAME) for span in each if names.REQUEST_MODEL in span.attributes]
            for each in spans
        ]

    assert asyncio.run(calls()) == [agents] * 4


def test_an_agent_on_the_openai_sdk_is_trained_and_then_used_as_it_was(here, monkeypatch):
    names = AGENT.run().names
    (here / "my_agent.py").write_text(AGENT.text, encoding="utf-8")
    monkeypatch.syspath_prepend(here)
    for block in (MAILS, PAID):
        names |= block.run(given=names).names
    train, held_out = names["train"], names["held_out"]
    assert (len(train), len(held_out)) == (56, 38)
    assert not {task["mail"] for task in train} & {task["mail"] for task in held_out}
    answers = ("billing", "delivery", "it is billing", "billing or delivery")
    assert [names["reward"](answer, {"team": "billing"}) for answer in answers] == [1.0, 0.0, 0.0, 0.0]
    names["held_out"] = held_out[:4]
    names |= ROUTER.run({"total_steps=15": FEW, "max_new_tokens=8": "max_new_tokens=4"}, given=names).names
    assert [row["count"] for row in complete_run(here / "outputs/router")["accuracy"]] == [4, 4]
    port, printed = free_port(), []

    def read():
        printed.append(USED.run({"localhost:8000": f"127.0.0.1:{port}"}).printed)

    shell_line(OPENAI, "serve --adapter").serve(read, port=port)
    assert printed[0].endswith("\n")


def test_a_reward_is_written_tried_and_trained_with(here):
    names = {}
    for block in REWARD_PARTS:
        names |= block.run(given=names).names
    sizes = {"total_steps=15": FEW, "max_new_tokens=24": "max_new_tokens=4", "tasks[28:]": "tasks[28:30]"}
    REWARDED.run(sizes, given=names)
    assert [row["count"] for row in complete_run(here / "outputs/json")["accuracy"]] == [2, 2]
    logged = {name for row in read_metrics(here / "outputs/json/metrics.jsonl") for name in row}
    assert {f"reward/{part}/mean" for part in ("is_json", "is_right", "length")} <= logged, "a curve for each part"


def test_a_loss_has_the_gradient_that_it_should_and_trains(here):
    names = {}
    for block in LOSS_PARTS:
        names |= block.run(given=names).names
    sizes = "total_steps=1, tasks_per_step=1, samples_per_prompt=4"
    try:
        LEARNT.run({"total_steps=8": sizes, "max_new_tokens=32": "max_new_tokens=6"}, given=names)
    finally:
        LOSSES.pop("smooth", None)
    assert json.loads((here / "outputs/smooth/summary.json").read_text())["steps"] == 1
    assert '"smooth"' in (here / "outputs/smooth/config.json").read_text()


def follow_langchain(folder: Path) -> None:
    """Follow docs/your-agent.md at the size of a test, in the working directory `folder`."""
    names = LANGCHAIN["agent"].run().names
    names |= LANGCHAIN["rollout"].run(given=names).names
    few = {"max_new_tokens=64": "max_new_tokens=6"}
    names |= LANGCHAIN["tried"].run(few | {"held_out[:4]": "held_out[:1]"}, given=names).names
    few |= {"examples=32": "examples=2", "total_steps=15": ONE_TASK}
    few |= {"eval_size=100": "eval_size=2", "n_runners=64": "n_runners=4"}
    names |= LANGCHAIN["trained"].run(few, given=names).names
    summary = complete_run(folder / "outputs/langchain")
    assert [row["name"] for row in summary["accuracy"]] == ["before", "after SFT", "after RL"]
    port, printed = free_port(), []

    def read() -> None:
        address = {"localhost:8000": f"127.0.0.1:{port}", "max_tokens=64": "max_tokens=4"}
        printed.append(LANGCHAIN["used"].run(address, given=names).printed)

    shell_line(YOURS, "serve --adapter").serve(read, port=port)
    assert printed


def test_a_langchain_agent_is_tried_trained_and_used(here):
    pytest.importorskip("langchain_openai", reason="LangChain is not installed: its tutorial is left to test-agents")
    follow_langchain(here)
