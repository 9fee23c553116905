"""docs/tinker.md: its example fits the server that the page starts; tests/real_integrations runs it."""

from __future__ import annotations

import ast

from mini_agentic_rl.integrations.tinker import TinkerSettings
from mini_agentic_rl.integrations.tinker.losses import LOSSES
from mini_agentic_rl.integrations.tinker.settings import ClientSettings
from pages.snippets import ROOT, python_block

TRAINING = python_block("docs/tinker.md", "create_lora_training_client")


def test_the_example_asks_for_the_model_and_a_loss_that_the_server_has():
    tree = ast.parse(TRAINING.text)
    calls = {
        call.func.attr: call
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
    }
    base_model, rank = (each.value.value for each in calls["create_lora_training_client"].keywords)
    assert base_model == TinkerSettings().load.model
    assert rank <= ClientSettings().max_rank
    assert calls["forward_backward"].args[1].value in LOSSES


def test_the_page_names_every_loss_and_the_bounds_as_they_are():
    page = (ROOT / "docs/tinker.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in LOSSES)
    settings = TinkerSettings()
    assert f"http://127.0.0.1:{settings.server.port}" in page
    for name in ("max_trained_adapters", "sampler_slots", "max_snapshots", "max_open_requests", "session_seconds"):
        value = getattr(settings.clients, name)
        assert f"`--{name.replace('_', '-')}` ({value:g})" in page
