"""docs/tinker.md: its example fits the server that the page starts; tests/real_integrations runs it."""

from __future__ import annotations

import ast

from mini_agentic_rl.integrations.tinker import TinkerSettings
from mini_agentic_rl.integrations.tinker.losses import LOSSES
from mini_agentic_rl.integrations.tinker.settings import ClientSettings
from pages.snippets import python_block

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
