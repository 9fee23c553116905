"""`plan` and the presets."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mini_agentic_rl.cli import app
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.jobs.config import TrainConfig
from mini_agentic_rl.jobs.plan import apply_preset, plan_job, read_size
from mini_agentic_rl.jobs.settings import PlanSettings
from tiny import tiny_model

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def model(tmp_path):
    tiny_model().config.save_pretrained(tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GB", 4 * 10**9),
        ("3500 mb", 3_500_000_000),
        ("4GiB", 2**32),
        ("1.5GB", 1_500_000_000),
        ("4g", 4 * 10**9),
        ("4000000000", 4 * 10**9),
    ],
)
def test_sizes_are_read_as_people_write_them(text, size):
    assert read_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "4 lots", "-4GB", "4", "400KB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(UserError, match="vram"):
        read_size(text)


def test_the_plan_adds_up_and_names_the_options_of_train(model):
    result = CliRunner().invoke(app, ["plan", "--model", model, "--vram", "4GB", "--json"])
    assert result.exit_code == 0
    plan = json.loads(result.stdout)
    phases = {
        phase: sum(p["bytes"] for p in plan["parts"] if p["phase"] == phase)
        for phase in ("always", "sampling", "learning")
    }
    assert plan["peak_bytes"] == phases["always"] + max(phases["sampling"], phases["learning"])
    assert f"--model {model}" in plan["options"]
    shown = CliRunner().invoke(app, ["plan", "--model", model, "--device", "cpu"])
    assert "activations of learning" in shown.stdout
    assert "mini-agentic-rl train --model" in shown.stdout


def test_what_cannot_fit_is_one_clear_line(model):
    with pytest.raises(UserError, match="vram: 1MB: the smallest settings need"):
        plan_job(PlanSettings(model=model, vram="1MB"))


def test_a_preset_only_saves_more_than_was_asked_for(model):
    asked = TrainConfig(
        model=model, device="cpu", preset="4gb", gradient_checkpointing=True, max_batch_tokens=200, cache_mib=64
    )
    chosen = apply_preset(asked)
    assert chosen.learner.checkpointing
    assert chosen.learner.max_batch_tokens <= 200
    assert chosen.engine.cache_mib <= 64
    assert apply_preset(asked.changed(preset="none")).preset == "none"
    with pytest.raises(UserError, match="full_finetune"):
        apply_preset(TrainConfig(model=model, device="cpu", preset="4gb", full_finetune=True))


def test_the_page_about_memory_shows_what_is_planned():
    drawing = runpy.run_path(str(DOCS / "pictures" / "draw.py"))
    plans = drawing["memory_plans"]()
    assert drawing["draw_memory"](plans) == (DOCS / "pictures" / "memory.svg").read_text(encoding="utf-8")
    page = (DOCS / "memory.md").read_text(encoding="utf-8")
    plain, checkpointed, card = plans.values()
    for part in card.parts:
        assert f"| {part.name} | {part.phase} | {part.bytes / 1e6:,.0f} |" in page
    assert f"| **peak** | learning | **{card.peak / 1e6:,.0f}** |" in page
    assert f"| as it is | {plain.peak / 1e9:.2f} |" in page
    assert f"| with `--gradient-checkpointing` | {checkpointed.peak / 1e9:.2f} |" in page
