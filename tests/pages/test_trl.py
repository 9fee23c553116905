"""docs/trl.md: an environment, and TRL's trainer that samples with our engine."""

from __future__ import annotations

import json

import pytest

from pages.snippets import python_block

PAGE = "docs/trl.md"
ENVIRONMENT = python_block(PAGE, "class Till:")
SAMPLER = python_block(PAGE, "TRLSampler()")

FEW = "max_steps=1, per_device_train_batch_size=1, gradient_accumulation_steps=1, samples_per_prompt=2"


def test_an_environment_of_trl_is_trained(here):
    ENVIRONMENT.run({"max_steps=10": FEW, "max_new_tokens=64": "max_new_tokens=4"})
    assert json.loads((here / "outputs/till/grpo/summary.json").read_text())["steps"] == 1
    assert (here / "outputs/till/adapter_model.safetensors").is_file()


def test_trl_trains_on_what_our_engine_has_sampled(here):
    pytest.importorskip("trl", reason="trl is not installed: its trainer with our engine is left unchecked")
    ran = SAMPLER.run({"max_steps=10": "max_steps=1, use_cpu=True", "length=48": "length=4"})
    assert ran.names["trainer"].state.global_step == 1
