"""Layers that C++ computes together give the numbers of the modules, to the last bit, and others are left to them."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from helpers import sample_all
from mini_agentic_rl.policy import EngineSettings, LearnerSettings, LoraSettings, Policy, kernels, load_model
from mini_agentic_rl.policy.sampling_layers import PackedLinears
from mini_agentic_rl.tokens import SamplingParams

CPU = torch.device("cpu")
BFLOAT16, FLOAT32 = (
    pytest.param(dtype, marks=pytest.mark.skipif(not kernels.usable(dtype, CPU), reason=f"this machine lacks {needed}"))
    for dtype, needed in ((torch.bfloat16, "AVX512-BF16 or g++"), (torch.float32, "AVX2 or g++"))
)

PROMPTS = [[1, 2, 3], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [1, 2, 3, 4, 5, 6, 7, 8, 40], [30, 31]]
PARAMS = [SamplingParams(max_tokens=24, seed=seed) for seed in range(len(PROMPTS))]


def _shape(**changes):
    shape = {"hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 3, "vocab_size": 60}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "initializer_range": 0.08}
    return {**shape, **heads, "max_position_embeddings": 128, **changes}


def _policy(config, model, dtype=torch.bfloat16, lora=True):
    torch.manual_seed(0)
    base = model(config).to(dtype)
    for name, parameter in base.named_parameters():
        if name.endswith("bias") or "norm" in name:
            parameter.data.add_(torch.randn(parameter.shape).to(parameter.dtype), alpha=0.1)
    made = load_model(base, lora=LoraSettings(r=6) if lora else None)
    for name, parameter in made.base.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.2)
    return Policy(made, EngineSettings(block_size=4, cache_mib=1, max_batch_tokens=48, max_draft_tokens=0))


def _by_modules(policy, monkeypatch):
    """What is sampled where no layers are computed together; all else stays."""
    with monkeypatch.context() as patch:
        patch.setattr(PackedLinears, "in_place", property(lambda self: False))
        policy.run(policy.engine.cache.drop_idle)
        return sample_all(policy, PROMPTS, PARAMS, adapter="default" if policy.model.peft_model else None)


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT32])
@pytest.mark.parametrize(
    ("config", "model"),
    [
        (LlamaConfig(**_shape()), LlamaForCausalLM),
        (Qwen2Config(**_shape()), Qwen2ForCausalLM),  # queries, keys and values have biases
        (Qwen3Config(**_shape()), Qwen3ForCausalLM),  # norms of each head
        (LlamaConfig(**_shape(num_attention_heads=2, head_dim=64)), LlamaForCausalLM),
    ],
)
def test_tokens_and_log_probabilities_are_those_of_the_modules(config, model, dtype, monkeypatch):
    with closing(_policy(config, model, dtype)) as policy:
        together = sample_all(policy, PROMPTS, PARAMS)
        assert policy.model._stack._agrees
        one_by_one = _by_modules(policy, monkeypatch)
    for found, expected in zip(together, one_by_one, strict=True):
        assert found.output_ids.tolist() == expected.output_ids.tolist()
        assert np.array_equal(found.logprobs, expected.logprobs)


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT32])
def test_a_step_of_learning_is_sampled_from(dtype, monkeypatch):
    with closing(_policy(LlamaConfig(**_shape()), LlamaForCausalLM, dtype)) as policy:
        before = sample_all(policy, PROMPTS, PARAMS)
        learner = policy.run(lambda: policy.learner(LearnerSettings(learning_rate=0.05, warmup_steps=0)))

        def step():
            for parameter in learner.parameters:
                parameter.grad = torch.ones_like(parameter)
            return learner.optim_step()

        policy.learn(step)
        after = sample_all(policy, PROMPTS, PARAMS)
        expected = _by_modules(policy, monkeypatch)
    assert [one.logprobs.tolist() for one in after] != [one.logprobs.tolist() for one in before]
    assert [one.logprobs.tolist() for one in after] == [one.logprobs.tolist() for one in expected]


@pytest.mark.parametrize(
    ("config", "model"),
    [
        (Gemma2Config(**_shape()), Gemma2ForCausalLM),  # other norms and another activation
        (GraniteConfig(**_shape(residual_multiplier=0.5)), GraniteForCausalLM),  # the same parts, added up otherwise
        (MistralConfig(**_shape(sliding_window=8)), MistralForCausalLM),  # tokens that see the last ones only
    ],
)
@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT32])
def test_models_that_are_built_otherwise_keep_their_modules(config, model, dtype, monkeypatch):
    with closing(_policy(config, model, dtype)) as policy:
        found = sample_all(policy, PROMPTS, PARAMS)
        assert policy.model._stack is None or policy.model._stack._agrees is False
        expected = _by_modules(policy, monkeypatch)
    assert [one.output_ids.tolist() for one in found] == [one.output_ids.tolist() for one in expected]
