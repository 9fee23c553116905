"""docs/post-training.md and docs/reward-service.md: the calls from Python, and the folder and server that they give."""

from __future__ import annotations

import json

import httpx

from mini_agentic_rl.policy import load_model
from mini_agentic_rl.post_training import RewardModelSettings, train_reward_model
from pages.snippets import fenced_blocks, python_block

SFT = python_block("docs/post-training.md", "train_sft(SFTSettings(")
SERVER = python_block("docs/reward-service.md", "with ScoreServer(")


def test_sft_prints_its_losses_and_leaves_the_folder_of_the_page(here):
    rows = [{"question": f"What is {n} + 1?", "answer": f"{n} + 1 = {n + 1}\n#### {n + 1}"} for n in range(12)]
    for split in ("train", "test"):
        (here / "gsm8k").mkdir(exist_ok=True)  # docs/datasets.md: it is taken before the Hub
        (here / "gsm8k" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    before, after = map(float, SFT.run().printed.split())
    assert after < before
    folder = here / "outputs" / "sft"
    load_model(str(folder))
    (_, listed), *_ = fenced_blocks("docs/post-training.md", "")
    named = [
        word.rstrip("/") for line in listed.splitlines() for word in line.split("  ") if "." in word or "/" in word
    ]
    assert named
    for name in named:
        assert list(folder.glob(name.replace("epoch_N", "epoch_1"))), name


def test_a_reward_model_is_served_from_python(here):
    train_reward_model(RewardModelSettings(output_dir="outputs/judge", max_samples=8, num_epochs=1))
    health = SERVER.run(
        {"print(server.url)": 'print(server.url, get(f"{server.url}/health").status_code)'}, given={"get": httpx.get}
    ).printed.split()
    assert health[0].startswith("http://127.0.0.1:")
    assert health[1] == "200"
