"""docs/trl.md: an environment."""

from __future__ import annotations

import json

from pages.snippets import python_block

PAGE = "docs/trl.md"
ENVIRONMENT = python_block(PAGE, "class Till:")

FEW = "max_steps=1, per_device_train_batch_size=1, gradient_accumulation_steps=1, samples_per_prompt=2"


def test_an_environment_of_trl_is_trained(here):
    ENVIRONMENT.run({"max_steps=10": FEW, "max_new_tokens=64": "max_new_tokens=4"})
    assert json.loads((here / "outputs/till/grpo/summary.json").read_text())["steps"] == 1
    assert (here / "outputs/till/adapter_model.safetensors").is_file()
