"""The tutorials, and the program of docs/architecture.md, from the first block to the last at the size of a test."""

from __future__ import annotations

import asyncio
import json

from mini_agentic_rl import LightningStoreServer, SqlLightningStore, Trainer
from mini_agentic_rl.algorithm.losses import LOSSES
from mini_agentic_rl.metrics import read_metrics
from mini_agentic_rl.policy import load_model
from pages.shell import free_port, shell_line
from pages.snippets import python_block

OPENAI = "docs/tutorials/openai-agent.md"
AGENT = python_block(OPENAI, "def route(")
MAILS = python_block(OPENAI, "SENTENCES = {")
PAID = python_block(OPENAI, "def reward(")
TRAINED = python_block(OPENAI, 'output_dir="outputs/router"')
USED = python_block(OPENAI, "localhost:8000")

TOKEN = "docs/architecture.md"
STATIONS = [
    python_block(TOKEN, part)
    for part in (
        "Policy.load(",
        "token, recorded =",
        "tree = TokenTree()",
        "packed = pack(",
        "rewards = np.array",
        "lengths = np.bincount",
        "learner = policy.run",
        "def loss(",
        "def step(",
        "policy.close()",
    )
]

REWARD = "docs/tutorials/add-a-reward.md"
WRITTEN = python_block(REWARD, "def is_json(")
SUMMED = python_block(REWARD, "reward = WeightedSum(")
TRIED = python_block(REWARD, "scores = reward(")
REWARDED = python_block(REWARD, "hooks=[RewardHook(reward)]")

LOSS = "docs/tutorials/add-a-loss.md"
SURROGATE = python_block(LOSS, "def smooth(")
GRADIENT = python_block(LOSS, "def gradient(")
LEARNT = python_block(LOSS, 'register_loss("smooth")')

PLANNED = python_block("docs/tutorials/four-gigabytes.md", "plan_job(")
RUNNERS = python_block("docs/scaling.md", "ClientServerExecutionStrategy(")

FEW = "total_steps=1, tasks_per_step=2, samples_per_prompt=2"


def told(folder):
    """Return the summary of a run that left all files a page may name."""
    for name in ("config.json", "metrics.jsonl", "report.html", "rollouts.db"):
        assert (folder / name).is_file(), name
    load_model(str(folder / "adapter"))
    return json.loads((folder / "summary.json").read_text())


def test_an_agent_on_the_openai_sdk_is_trained_and_then_used_as_it_was(here, monkeypatch):
    names = AGENT.run().names
    (here / "my_agent.py").write_text(AGENT.text, encoding="utf-8")
    monkeypatch.syspath_prepend(here)
    for block in (MAILS, PAID):
        names |= block.run(given=names).names
    train, held_out = names["train"], names["held_out"]
    assert (len(train), len(held_out)) == (56, 38)
    assert not {task["mail"] for task in train} & {task["mail"] for task in held_out}
    said = ("billing", "delivery", "it is billing", "billing or delivery")
    assert [names["reward"](one, {"team": "billing"}) for one in said] == [1.0, 0.0, 0.0, 0.0]
    names["held_out"] = held_out[:4]
    names |= TRAINED.run({"total_steps=15": FEW, "max_new_tokens=8": "max_new_tokens=4"}, given=names).names
    summary = told(here / "outputs/router")
    assert [(row["name"], row["count"]) for row in summary["accuracy"]] == [("before", 4), ("after RL", 4)]
    port, printed = free_port(), []

    def read():
        printed.append(USED.run({"localhost:8000": f"127.0.0.1:{port}"}, given={}).printed)

    shell_line(OPENAI, "serve --adapter").serve(read, port=port)
    assert printed[0].endswith("\n")


def test_a_token_is_followed_from_the_draw_to_the_gradient(here):
    names = {}
    printed = ""
    for block in STATIONS:
        ran = block.run(given=names)
        names |= ran.names
        printed += ran.printed
    assert "by version 0" in printed
    tree, apart = (int(word) for word in printed.splitlines()[1].split() if word.isdigit())
    assert tree < apart, "the prompt is there once"
    assert names["norm"] > 0


def test_a_reward_is_written_tried_and_trained_with(here):
    names = {}
    for block in (WRITTEN, SUMMED, TRIED):
        names |= block.run(given=names).names
    sizes = {"total_steps=15": FEW, "max_new_tokens=24": "max_new_tokens=4", "tasks[28:]": "tasks[28:30]"}
    REWARDED.run(sizes, given=names)
    summary = told(here / "outputs/json")
    assert [row["count"] for row in summary["accuracy"]] == [2, 2]
    logged = {name for row in read_metrics(here / "outputs/json/metrics.jsonl") for name in row}
    assert {f"reward/{part}/mean" for part in ("is_json", "is_right", "length")} <= logged, "a curve for each part"


def test_a_loss_has_the_gradient_that_it_should_and_trains(here):
    names = SURROGATE.run().names
    names |= GRADIENT.run(given=names).names
    sizes = "total_steps=1, tasks_per_step=1, samples_per_prompt=4"
    try:
        LEARNT.run({"total_steps=8": sizes, "max_new_tokens=32": "max_new_tokens=6"}, given=names)
    finally:
        LOSSES.pop("smooth", None)
    assert told(here / "outputs/smooth")["steps"] == 1
    config = json.loads((here / "outputs/smooth/config.json").read_text())
    assert '"smooth"' in json.dumps(config)


def test_a_plan_tells_a_size_and_options_that_train_takes(here):
    (printed,) = PLANNED.run().printed.splitlines()
    size, _, options = printed.partition(" GB with: mini-agentic-rl train ")
    assert 0 < float(size) <= 4
    assert "--model embedded" in options


def test_runners_alone_have_a_role(here):
    trainer = RUNNERS.run().names["runners"]
    assert isinstance(trainer, Trainer)
    assert trainer.strategy.role == "runner"


def test_the_store_of_several_machines_is_looked_into(here):
    page, port = "docs/scaling.md", free_port()

    async def looked():
        store = SqlLightningStore(here / "store.db")
        rollout = await store.start_rollout({"question": "1 + 2"}, worker_id="worker-1")
        await store.update_attempt(rollout.rollout_id, "latest", status="running")
        server = LightningStoreServer(store, port=port)
        await server.start()
        try:
            address = {"localhost:4747": f"127.0.0.1:{port}"}
            parts = ("agl workers --store", "agl rollouts list --store http")
            shown = [await asyncio.to_thread(shell_line(page, part).run, replace=address) for part in parts]
        finally:
            await server.stop()
            await store.close()
        return rollout.rollout_id, shown

    number, (workers, running) = asyncio.run(looked())
    assert "worker-1" in workers
    assert number in running
