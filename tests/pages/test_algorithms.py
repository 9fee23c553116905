"""docs/algorithms.md: presets by name, verl configurations, and a loss of one's own."""

from __future__ import annotations

import json

import numpy as np
from openai import OpenAI

from mini_agentic_rl import Trainer, llm_rollout
from mini_agentic_rl.algorithm import ADVANTAGES
from mini_agentic_rl.policy import DEFAULT_ADAPTER
from mini_agentic_rl.policy.load import save_weights
from pages.snippets import python_block

PRESETS = python_block("docs/algorithms.md", 'preset="rloo"')
LORA = python_block("docs/algorithms.md", "lora_dropout=0.05")
OWN_ADVANTAGE = python_block("docs/tutorials/add-a-loss.md", 'register_advantage("floored")')

MINI_GRPO = "from mini_agentic_rl import VERL, MiniGRPO"


@llm_rollout
def letters(task, llm):
    """Answer with many different letters."""
    client = OpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none")
    messages = [{"role": "user", "content": task["word"]}]
    reply = client.chat.completions.create(model=llm.model, messages=messages, **llm.sampling_parameters)
    return float(len(set(reply.choices[0].message.content or "")))


def test_a_preset_chooses_the_settings_and_what_is_given_by_name_wins(here):
    rest = {", ...}": ', "actor_rollout_ref": {"rollout": {"n": 4}}}'}
    rloo, dapo, verl = PRESETS.run(rest, before=MINI_GRPO).values
    assert (rloo.settings.preset, rloo.settings.baseline) == ("rloo", "leave_one_out")
    assert (dapo.settings.preset, dapo.settings.clip_ratio, dapo.settings.clip_ratio_high) == ("dapo", 0.2, 0.3)
    assert dapo.settings.dynamic_sampling
    assert (verl.settings.baseline, verl.settings.samples_per_prompt) == ("leave_one_out", 4)


def test_an_adapter_takes_the_names_of_peft(here):
    (algorithm,) = LORA.run({"lora=lora": "lora=lora, total_steps=0, keep_open=True"}, before=MINI_GRPO).values
    Trainer(algorithm=algorithm).fit(letters, [{"word": "lamp"}])
    try:
        save_weights(algorithm.served.policy.model, here / "adapter", DEFAULT_ADAPTER)
    finally:
        algorithm.close()
    config = json.loads((here / "adapter/adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (8, 16, 0.05)
    assert set(config["target_modules"]) == {"q_proj", "k_proj", "v_proj", "o_proj"}


def test_a_program_adds_an_advantage(here):
    try:
        (algorithm,) = OWN_ADVANTAGE.run(before=MINI_GRPO).values
        assert ADVANTAGES["floored"](np.array([1.0, 0.0, 0.0])).tolist() == [1.0, -0.25, -0.25]
    finally:
        ADVANTAGES.pop("floored", None)
    assert algorithm.settings.baseline == "floored"
