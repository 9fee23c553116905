"""Several adapters on one set of weights: kept apart in memory, on disk, in learning and in sampling."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from peft import PeftModel

from helpers import sample_all
from mini_agentic_rl.policy import EngineSettings, LearnerSettings, LoraSettings, LossOutputs, Policy, load_model
from mini_agentic_rl.policy.errors import PolicyError
from mini_agentic_rl.policy.load import load_weights, save_weights
from mini_agentic_rl.tokens import SamplingParams, TokenTree, pack
from tiny import tiny_model


def two_adapters(*names: str, **options):
    """A tiny model with adapters that already do something, each something else."""
    names = names or ("assistant", "user")
    model = load_model(tiny_model(), lora=LoraSettings(), adapters=dict.fromkeys(names), **options)
    generator = torch.Generator().manual_seed(1)
    for name in names:
        for matrix in model.trainable(name):
            matrix.data.normal_(0, 0.2, generator=generator)
    return model


@contextmanager
def policy_of(model, **engine):
    policy = Policy(model, EngineSettings(**{"block_size": 4, "cache_mib": 1, "max_batch_tokens": 48, **engine}))
    try:
        yield policy
    finally:
        policy.close()


@pytest.mark.parametrize("names", [("assistant", "user"), ("user", "user2"), ("q", "default")])
def test_adapters_are_saved_as_plain_peft_reads_them_and_read_back(names, tmp_path):
    model = two_adapters(*names)
    before = {name: [matrix.clone() for matrix in model.trainable(name)] for name in names}
    for name in names:
        save_weights(model, tmp_path / name, name)
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == [
            "adapter_config.json",
            "adapter_model.safetensors",
        ]
        plain = PeftModel.from_pretrained(tiny_model(), tmp_path / name)
        found = [matrix for key, matrix in plain.named_parameters() if "lora_" in key]
        assert all(torch.equal(one, other) for one, other in zip(found, before[name], strict=True))
    for name in names:
        for matrix in model.trainable(name):
            matrix.data.zero_()
    for name in names:
        load_weights(model, tmp_path / name, name)
    for name in names:
        assert all(torch.equal(*pair) for pair in zip(model.trainable(name), before[name], strict=True))


def test_the_first_of_several_adapters_begins_as_a_single_one_would():
    one = load_model(tiny_model(), lora=LoraSettings(), seed=7)
    several = load_model(tiny_model(), lora=LoraSettings(), adapters={"assistant": None, "user": None}, seed=7)
    assert all(torch.equal(*pair) for pair in zip(one.trainable(), several.trainable("assistant"), strict=True))
    assert not all(torch.equal(*pair) for pair in zip(one.trainable(), several.trainable("user"), strict=True))


@pytest.mark.parametrize("name", ["", "a/b", "two.parts", "keys", "training", "a", "lora_A", "layers", "0"])
def test_a_name_that_can_be_no_module_and_no_folder_is_refused(name):
    with pytest.raises(PolicyError, match="cannot be named"):
        load_model(tiny_model(), lora=LoraSettings(), adapters={name: None})


def test_adapters_that_cannot_be_had_together_are_refused(tmp_path):
    with pytest.raises(PolicyError, match="adapters: name at least one"):
        load_model(tiny_model(), lora=LoraSettings(), adapters={})
    with pytest.raises(PolicyError, match="name it once"):
        load_model(tiny_model(), lora=LoraSettings(), adapters={"user": None}, fixed_adapters={"user": tmp_path})
    with pytest.raises(PolicyError, match="under full training"):
        load_model(tiny_model(), lora=None, adapters={"user": None})
    with pytest.raises(PolicyError, match="no adapter in"):
        load_model(tiny_model(), lora=LoraSettings(), fixed_adapters={"user": tmp_path})


def test_a_fixed_adapter_cannot_be_trained(tmp_path):
    save_weights(two_adapters(), tmp_path, "user")
    model = load_model(tiny_model(), lora=LoraSettings(), fixed_adapters={"user": tmp_path})
    with policy_of(model) as policy, pytest.raises(PolicyError, match="'user' is fixed"):
        policy.run(lambda: policy.learner(LearnerSettings(), "user"))


def _tree(records):
    tree = TokenTree()
    for index, record in enumerate(records):
        tree.insert(record, index)
    return pack([tree])


def test_a_step_of_one_adapter_changes_nothing_of_the_other():
    prompts, params = [[1, 2, 3, 4, 5]] * 2, [SamplingParams(max_tokens=5, seed=seed) for seed in range(2)]
    with policy_of(two_adapters()) as policy:
        records = sample_all(policy, prompts, params, adapter="assistant")

        def job():
            learners = {
                name: policy.learner(LearnerSettings(learning_rate=0.1), name) for name in ("assistant", "user")
            }
            others = [matrix.clone() for matrix in learners["user"].parameters]
            learner = learners["assistant"]
            learner.forward_backward(_tree(records), lambda inputs: LossOutputs(inputs.logprobs_S.sum()))
            assert all(matrix.grad is None for matrix in learners["user"].parameters)
            learner.optim_step()
            same = [torch.equal(*pair) for pair in zip(learners["user"].parameters, others, strict=True)]
            return same, learners["user"].steps

        assert policy.run(job) == ([True] * 28, 0)
        assert policy.model.versions == {"assistant": 1, "user": 0}


@pytest.mark.parametrize("engine", [{"max_running": 1}, {"deterministic": True}, {"cache_mib": 1, "block_size": 512}])
def test_requests_of_several_adapters_are_served_however_little_room_there_is(engine):
    names = ["assistant", "user", None] * 4
    prompts = [[1, 2, 3, number] for number in range(len(names))]
    params = [SamplingParams(max_tokens=4, seed=number) for number in range(len(names))]
    with policy_of(two_adapters(), **engine) as policy:
        together = sample_all(policy, prompts, params, adapter=names)
        for name, prompt, sampling, record in zip(names, prompts, params, together, strict=True):
            (alone,) = sample_all(policy, [prompt], [sampling], adapter=name)
            assert alone.output_ids.tolist() == record.output_ids.tolist()


def test_a_fixed_adapter_of_a_few_layers_samples_what_it_would_alone(tmp_path):
    settings = LoraSettings(target_modules=("q_proj", "down_proj"), r=4)
    source = load_model(tiny_model(), lora=settings)
    for matrix in source.trainable():
        torch.nn.init.normal_(matrix, std=0.3)
    save_weights(source, tmp_path)
    prompts, params = [[5, 6, 7, 8]], [SamplingParams(max_tokens=12, seed=3)]
    with policy_of(source) as policy:
        (expected,) = sample_all(policy, prompts, params)
    with policy_of(load_model(tiny_model(), lora=LoraSettings(), fixed_adapters={"user": tmp_path})) as policy:
        (found,) = sample_all(policy, prompts, params, adapter="user")
    assert found.output_ids.tolist() == expected.output_ids.tolist()
    torch.testing.assert_close(torch.tensor(found.logprobs), torch.tensor(expected.logprobs), atol=1e-5, rtol=0)


def test_deterministic_numbers_do_not_depend_on_whose_turn_was_before():
    prompt, sampling = [5, 6, 7, 8], SamplingParams(max_tokens=3, seed=3)
    with policy_of(two_adapters(), deterministic=True) as policy:
        turns = ("user", "assistant", "user", "user")
        found = [sample_all(policy, [prompt], [sampling], adapter=name)[0] for name in turns]
    first, _, after_another, again = found
    assert first.logprobs.tolist() == after_another.logprobs.tolist() == again.logprobs.tolist()
