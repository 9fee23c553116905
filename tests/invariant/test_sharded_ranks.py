"""Ranks that hold a part of the base each end with the weights of one rank that holds the whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import sharded_run

from mini_agentic_rl import MiniGRPO
from mini_agentic_rl.policy import LoraSettings, PolicyError, RankSettings
from mini_agentic_rl.samplers import SamplerSettings
from ranked import adapter_difference, run_on_ranks
from samplers.vllm_wire import VllmWireServer
from tiny import tiny_model, tiny_tokenizer

SCRIPT = Path(__file__).parent / "sharded_run.py"


@pytest.fixture(scope="module")
def server():
    found = VllmWireServer(tiny_model(len(tiny_tokenizer())), deterministic=True)
    yield found
    found.close()


@pytest.fixture(scope="module")
def sharded(server, tmp_path_factory):
    """Return the folder of what two ranks have learnt, and what the server has loaded for their training."""
    folder = tmp_path_factory.mktemp("sharded")
    run_on_ranks(2, SCRIPT, str(folder), server.url)
    return folder, list(server.ever_loaded), {asked.salt for asked in server.asked}


def test_two_ranks_with_half_of_the_layers_each_learn_what_one_does(sharded, tmp_path):
    sharded_run.learn(tmp_path)
    two = sharded[0] / "learn"
    assert adapter_difference(tmp_path, two) < 1e-5
    alone, together = (json.loads((folder / "told.json").read_text()) for folder in (tmp_path, two))
    for here, there in zip(alone["scored"], together["scored"], strict=True):
        assert there == pytest.approx(here, abs=1e-4)
    base = tiny_model(layers=3)
    layers = sum(p.numel() for p in base.model.layers.parameters())
    assert alone["held"] - together["held"] == layers // 2


def test_a_training_in_parts_samples_at_a_server_with_each_version(sharded):
    folder, loaded, salts = sharded[0] / "train", *sharded[1:]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["steps"] == 2
    versions = [name.partition(".")[0] for name in loaded]
    assert versions == ["default@v0", "default@v1"]  # nothing is sampled after the last step
    assert {salt.partition(".v")[2][0] for salt in salts if not salt.startswith("base")} == {*"01"}
    assert sorted(path.name for path in (folder / "checkpoints").iterdir())[-1] == "step_2"
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
    assert max(row["mismatch/mean_abs"] for row in rows if "mismatch/mean_abs" in row) < 1e-4


@pytest.mark.parametrize("count", [2, 1])
def test_a_training_in_parts_goes_on_from_its_checkpoint_in_parts_or_whole(count, sharded, server, tmp_path):
    folder = shutil.copytree(sharded[0] / "train", tmp_path / "run")
    (folder / "summary.json").unlink()
    shutil.rmtree(folder / "checkpoints" / "step_2")
    server.ever_loaded.clear()
    run_on_ranks(count, SCRIPT, str(folder), server.url, "--resume")
    assert [name.partition(".")[0] for name in server.ever_loaded] == ["default@v1"]
    assert json.loads((folder / "summary.json").read_text())["steps"] == 2
    assert adapter_difference(sharded[0] / "train", folder) < 1e-5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "shard: ranks that hold a part of the base each cannot sample.*sampler=vllm"),
        ({"sampler": SamplerSettings(sampler="vllm"), "lora": None, "kl_coef": 0.0}, "shard: only a frozen base"),
        ({"sampler": SamplerSettings(sampler="vllm"), "load_options": {"quantization": "4bit"}}, "shard: a quantised"),
    ],
)
def test_what_cannot_be_held_in_parts_is_refused(options, said):
    with pytest.raises(PolicyError, match=said):
        MiniGRPO("embedded", **{"lora": LoraSettings(), "ranks": RankSettings(shard=True), **options})


async def test_one_rank_has_nobody_to_share_with():
    alone = MiniGRPO("embedded", ranks=RankSettings(shard=True), sampler=SamplerSettings(sampler="vllm"))
    with pytest.raises(PolicyError, match="shard: one rank has nobody to share the base with: start several"):
        await alone.run([{}])
