"""The planner's parts, and the settings that it chooses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers import pack_rollouts
from mini_agentic_rl.policy import Learner, LearnerSettings, LoraSettings, LossOutputs, load_model
from mini_agentic_rl.policy.memory_plan import ModelShape, PlannedSettings, PlannedWork, fitting_plan, plan_memory
from mini_agentic_rl.tokens import CompletionRecord
from tiny import tiny_model

WORK = PlannedWork(tasks_per_step=1, samples_per_prompt=8, prompt_tokens=512, max_new_tokens=512)
BF16 = PlannedSettings(dtype=torch.bfloat16, max_batch_tokens=2048, optimizer_8bit=True)
# Qwen2-0.5B and Qwen2.5-1.5B, from their published configurations.
HALF = ModelShape(24, 896, 4864, 896, 128, 151936, 357_826_560, 136_206_208, 136_134_656, 24 * 24_576)
ONE_AND_A_HALF = ModelShape(28, 1536, 8960, 1536, 256, 151936, 1_310_195_712, 233_519_104, 233_373_696, 28 * 44_032)


def _part(plan, name):
    return next(part.bytes for part in plan.parts if part.name == name)


def test_the_shape_of_a_model_is_read_without_its_weights(tmp_path):
    model = tiny_model()
    model.config.save_pretrained(tmp_path)
    shape = ModelShape.of(str(tmp_path))
    linears = [m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"]
    assert shape.linear_weights == sum(m.weight.numel() for m in linears)
    assert shape.linear_weights + shape.other_weights == sum(p.numel() for p in model.parameters())
    assert shape.lora_ends == sum(m.in_features + m.out_features for m in linears)
    assert (shape.layers, shape.query_size, shape.key_size) == (2, 48, 16)


def test_what_saves_memory_saves_it_where_it_should():
    plan = plan_memory(HALF, WORK, BF16, on_cpu=False)
    assert _part(plan, "weights") == 2 * (HALF.linear_weights + HALF.other_weights)
    four_bit = plan_memory(HALF, WORK, replace(BF16, quantization="4bit"), on_cpu=False)
    assert _part(four_bit, "weights") < _part(plan, "weights") / 2
    kept = plan_memory(HALF, WORK, replace(BF16, checkpointing=True), on_cpu=False)
    assert _part(kept, "activations of learning") < _part(plan, "activations of learning") / 3
    small = plan_memory(HALF, WORK, replace(BF16, max_batch_tokens=256), on_cpu=False)
    assert _part(small, "activations of learning") < _part(plan, "activations of learning")


def test_recorded_steps_hold_the_cache_and_their_buffers_while_learning():
    plain = plan_memory(HALF, WORK, BF16, on_cpu=False)
    recorded = plan_memory(HALF, WORK, replace(BF16, cuda_graphs=True), on_cpu=False)
    # 256 rows over 1,024 tokens, the largest step: slots and mask, a quarter of one layer's keys and values at a time,
    # and one layer of the rows.
    read, gathered, rows = 256 * 1024, 64 * 1024, 256
    widest = 3 * 4864 + 5 * 896 + 896 + 2 * 128
    assert _part(recorded, "recorded decode steps") == 8 * read + 2 * (read + 2 * 128 * gathered + rows * widest)
    assert recorded.peak == plain.peak + _part(recorded, "recorded decode steps") + 768 * 2**20
    assert plan_memory(HALF, WORK, replace(BF16, cuda_graphs=True), on_cpu=True) == replace(
        plan_memory(HALF, WORK, BF16, on_cpu=True), settings=replace(BF16, cuda_graphs=True)
    )


def test_where_memory_is_short_decode_steps_are_not_recorded():
    asked = replace(BF16, cuda_graphs=True, checkpointing=True, max_batch_tokens=128, cache_mib=256)
    with_graphs = plan_memory(HALF, WORK, asked, on_cpu=False).peak
    plan = fitting_plan(HALF, WORK, asked, with_graphs - 1, on_cpu=False, quantizes=True)
    assert (plan.settings.cuda_graphs, plan.settings.quantization) == (False, "none")


def test_side_by_side_both_are_held_and_with_a_sampler_elsewhere_only_learning():
    in_turns = plan_memory(HALF, WORK, BF16, on_cpu=True)
    beside = plan_memory(HALF, WORK, replace(BF16, side_by_side=True), on_cpu=True)
    assert beside.peak == sum(part.bytes for part in in_turns.parts) > in_turns.peak
    elsewhere = plan_memory(HALF, WORK, replace(BF16, side_by_side=True, samples_elsewhere=True), on_cpu=True)
    assert elsewhere.peak == sum(part.bytes for part in in_turns.parts if part.phase != "sampling")


def test_what_dropout_keeps_in_a_layer_is_what_the_plan_counts(tmp_path):
    """Count what the backward pass of the real learner keeps, with dropout and without, in four layers more."""
    prompt, new = 40, 24
    work = PlannedWork(tasks_per_step=1, samples_per_prompt=1, prompt_tokens=prompt, max_new_tokens=new)
    settings = PlannedSettings(dtype=torch.float32, lora_dropout=0.1)
    planned, kept = [], []
    for layers in (2, 6):
        tiny_model(layers=layers).config.save_pretrained(tmp_path / str(layers))
        shape = ModelShape.of(str(tmp_path / str(layers)))
        planned.append(_part(plan_memory(shape, work, settings, on_cpu=True), "dropout"))
        kept.append(_kept(0.1, layers, prompt, new) - _kept(0.0, layers, prompt, new))
    assert planned[1] - planned[0] == kept[1] - kept[0]


def _kept(rate, layers, prompt, new):
    """Return the bytes of the tensors that the graph of one learning pass saves, each storage once."""
    model = load_model(tiny_model(layers=layers), lora=LoraSettings(dropout=rate), device="cpu")
    learner = Learner(model, LearnerSettings())
    packed = pack_rollouts([[CompletionRecord(np.arange(prompt), np.arange(new), np.zeros(new, np.float32))]])
    storages = {}

    def keep(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor  # kept, so that no address is given out twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        learner.forward_backward(packed, lambda inputs: LossOutputs(-inputs.logprobs_S.sum()))
    return sum(tensor.untyped_storage().nbytes() for tensor in storages.values())


@pytest.mark.parametrize("shape", [HALF, ONE_AND_A_HALF])
def test_a_card_of_4_gb_is_filled_and_not_exceeded(shape):
    plan = fitting_plan(shape, WORK, BF16, 4 * 10**9, on_cpu=False, quantizes=True)
    assert plan.peak <= 4 * 10**9
    assert plan.settings.max_batch_tokens <= BF16.max_batch_tokens
    roomy = fitting_plan(shape, WORK, BF16, 80 * 10**9, on_cpu=False, quantizes=True)
    assert roomy.settings == BF16  # nothing is given up where nothing has to be


def test_where_nothing_fits_the_smallest_plan_is_returned():
    plan = fitting_plan(ONE_AND_A_HALF, WORK, BF16, 10**6, on_cpu=False, quantizes=False)
    assert plan.peak > 10**6
    assert plan.settings.quantization == "none"
    assert plan.settings.checkpointing
