"""`plan` and the presets."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from command_line import invoke
from mini_agentic_rl.commands import PlanSettings, TrainConfig
from mini_agentic_rl.commands.planning import apply_preset, plan_job, read_size
from mini_agentic_rl.errors import UserError
from tiny import tiny_model

DOCS = Path(__file__).parents[2] / "docs"
STEP = {"tasks_per_step": 8, "samples_per_prompt": 4, "max_new_tokens": 64, "prompt_tokens": 128}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return a folder with the configuration of a model."""
    folder = tmp_path_factory.mktemp("model")
    tiny_model().config.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GB", 4 * 10**9), ("3500 mb", 3_500_000_000), ("4GiB", 2**32), ("1.5G", 1_500_000_000), ("4000000", 4 * 10**6)],
)
def test_sizes_have_units(text, size):
    assert read_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "4 lots", "-4GB", "4", "400KB"])
def test_a_text_that_is_no_size_is_refused(text):
    with pytest.raises(UserError, match="vram"):
        read_size(text)


def test_the_plan_adds_up_and_names_the_options_of_train(model):
    result = invoke("plan", "--model", model, "--vram", "4GB", "--json")
    assert result.exit_code == 0
    plan = json.loads(result.stdout)
    phases = {
        phase: sum(p["bytes"] for p in plan["parts"] if p["phase"] == phase)
        for phase in ("always", "sampling", "learning")
    }
    assert plan["peak_bytes"] == phases["always"] + max(phases["sampling"], phases["learning"])
    assert f"--model {model}" in plan["options"]
    shown = invoke("plan", "--model", model, "--device", "cpu")
    assert "activations of learning" in shown.stdout
    assert "mini-agentic-rl train --model" in shown.stdout
    with pytest.raises(UserError, match="vram: 1MB: the smallest settings need"):
        plan_job(PlanSettings(model=model, vram="1MB"))


def test_a_preset_never_takes_more_memory_than_the_given_settings(model):
    given = TrainConfig(
        model=model, device="cpu", preset="4gb", gradient_checkpointing=True, max_batch_tokens=200, cache_mib=64
    )
    chosen = apply_preset(given)
    assert chosen.learner.checkpointing
    assert chosen.learner.max_batch_tokens <= 200
    assert chosen.engine.cache_mib <= 64
    assert apply_preset(given.changed(preset="none")).preset == "none"
    with pytest.raises(UserError, match="full_finetune"):
        apply_preset(TrainConfig(model=model, device="cpu", preset="4gb", full_finetune=True))


def test_the_picture_of_the_memory_shows_what_is_planned():
    drawing = runpy.run_path(str(DOCS / "pictures" / "draw.py"))
    plans = drawing["memory_plans"]()
    assert drawing["draw_memory"](plans) == (DOCS / "pictures" / "memory.svg").read_text(encoding="utf-8")


def planned(model, **settings):
    return plan_job(PlanSettings(model=model, device="cpu", dtype="float32", **STEP, **settings))


def parts(plan):
    return {part["name"]: part["bytes"] for part in plan["parts"]}


def test_ranks_share_the_work_of_a_step_and_hold_whole_weights_unless_they_are_sharded(model):
    one, four, sharded = planned(model), planned(model, ranks=4), planned(model, ranks=4, shard=True)
    assert parts(four)["keys and values"] == parts(one)["keys and values"] / 4
    assert four["peak_bytes"] <= one["peak_bytes"]
    assert parts(four)["weights"] == parts(one)["weights"]
    # What is not in the layers stays whole: embeddings and head.
    assert parts(one)["weights"] / 4 < parts(sharded)["weights"] < parts(one)["weights"]
    assert parts(sharded)["layers gathered from other ranks"] > 0
    assert "keys and values" not in parts(sharded)
    assert "--shard --sampler vllm" in sharded["options"]
    assert four["step"]["seconds"] == pytest.approx(one["step"]["seconds"] / 4)


def test_servers_that_sample_hold_the_cache_of_the_ranks(model):
    alone, beside = planned(model), planned(model, replicas=2)
    assert alone["replica"] is None
    assert set(parts(alone)) - set(parts(beside)) >= {"keys and values", "activations of sampling"}
    server = {part["name"]: part["bytes"] for part in beside["replica"]["parts"]}
    tokens = 4 * 128 + 16 * 64
    assert server["keys and values"] == 2 * 2 * (2 * 8) * 4 * tokens  # layers, heads x size, float32
    assert beside["replica"]["peak_bytes"] == sum(server.values())
    assert beside["step"]["learning_seconds"] == alone["step"]["learning_seconds"]
    ahead = planned(model, replicas=2, max_staleness=1)["step"]
    assert ahead["seconds"] == max(ahead["sampling_seconds"], ahead["learning_seconds"])
    assert planned(model, sampler="vllm")["replica"] == planned(model, replicas=1)["replica"]
    more = planned(model, sampler="vllm", replicas=4)
    assert more["step"]["sampling_seconds"] == beside["step"]["sampling_seconds"] / 2


def test_the_rates_of_a_run_predict_its_steps(model, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    for config in (None, "{}", json.dumps({"model": model})):
        if config is not None:
            (run / "config.json").write_text(config)
        with pytest.raises(UserError, match=f"rates: {run}"):
            planned(model, rates=run)
    rows = [
        {"phase": "SFT", "step": 1, "sft/loss": 1.0},
        {"tokens_per_second": 1, "seconds/learning": 100, "tree/tokens": 1},
        *({"tokens_per_second": 512, "seconds/learning": 2, "tree/tokens": 1536} for _ in range(3)),
    ]
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + '\n{"tokens_per')
    step = planned(model, rates=run)["step"]
    assert step["sampling_seconds"] == 8 * 4 * 64 / 512
    assert step["learning_seconds"] == (8 * 128 + 32 * 64) / (1536 / 2)
    assert "3 steps" in step["rates"]
