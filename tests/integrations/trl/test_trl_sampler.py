"""The engine as the sampler of TRL's GRPOTrainer: the weights that TRL trains, its log-probabilities, its steps."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig

from datasets import Dataset
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.samplers import TRLSampler
from tiny import tiny_model, tiny_tokenizer

trl = pytest.importorskip("trl", reason="trl is not installed: the engine as TRL's sampler is left unchecked")

TASKS = [
    {"prompt": [{"role": "user", "content": text}]} for text in ("Say a.", "Name a colour.", "Count to three.", "Hi")
]


def short(completions, **_):
    return [-float(len(completion[-1]["content"])) for completion in completions]


def trainer_of(folder, model, sampler, *, steps=2, peft_config=None, **options):
    arguments = trl.GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=12,
        max_steps=steps,
        learning_rate=1e-2,
        temperature=0.8,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        **options,
    )
    return trl.GRPOTrainer(
        model,
        reward_funcs=short,
        args=arguments,
        train_dataset=Dataset.from_list(TASKS),
        processing_class=tiny_tokenizer(),
        rollout_func=sampler,
        peft_config=peft_config,
    )


def trls_logprobs(trainer, answers):
    """The log-probabilities of what was sampled, by TRL's model, called as transformers means it."""
    found = []
    with torch.no_grad():
        for prompt, completion in zip(answers["prompt_ids"], answers["completion_ids"], strict=True):
            logits = trainer.model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
            scores = (logits / trainer.temperature).log_softmax(-1)
            found.append(scores.gather(1, torch.tensor(completion)[:, None])[:, 0])
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two trainings of two steps each, of all weights and of an adapter: what was sampled, and how it went."""
    runs = {}
    for name, lora in (("full", None), ("lora", LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))):
        sampler, differences, attention = TRLSampler(), [], []

        def checked(prompts, trainer, sampler=sampler, differences=differences, attention=attention):
            attention.append(trainer.model.config._attn_implementation)
            answers = sampler(prompts, trainer)
            attention.append(trainer.model.config._attn_implementation)
            for ours, theirs in zip(answers["logprobs"], trls_logprobs(trainer, answers), strict=True):
                differences.append(float((torch.tensor(ours) - theirs).abs().max()))
            return answers

        trainer = trainer_of(
            tmp_path_factory.mktemp(name), tiny_model(len(tiny_tokenizer())), checked, peft_config=lora
        )
        before = {key: value.clone() for key, value in trainer.model.state_dict().items()}
        trainer.train()
        after = trainer.model.state_dict()
        sampler.close()
        runs[name] = SimpleNamespace(
            changed=[key for key in before if not torch.equal(before[key], after[key])],
            differences=differences,
            attention=attention,
            training=trainer.model.training,
            logs=[entry for entry in trainer.state.log_history if "reward" in entry],
        )
    return runs


@pytest.mark.parametrize("name", ["full", "lora"])
def test_logprobs_are_those_of_trls_model_at_every_step_and_trl_finds_its_model_as_it_was(trained, name):
    run = trained[name]
    assert len(run.differences) == 8  # two steps of four completions, the second with weights that have changed
    assert max(run.differences) < 1e-4
    assert len(run.logs) == 2
    assert all(("lora_" in key) == (name == "lora") for key in run.changed)
    assert run.changed
    assert len(set(run.attention)) == 1
    assert run.attention[0] != "mini_agentic_rl"
    assert run.training


def test_draws_follow_from_the_trainers_seed_and_what_the_engine_does_not_do_is_refused_by_its_name(tmp_path):
    sampler, found = TRLSampler(), []
    trainer = trainer_of(tmp_path, tiny_model(len(tiny_tokenizer())), sampler, repetition_penalty=1.2)
    prompt = TASKS[0]["prompt"]
    with pytest.raises(UserError, match=r"repetition_penalty=1\.2"):
        trainer.train()
    trainer.repetition_penalty = 1.0
    trainer.tools = [short]
    with pytest.raises(UserError, match="tools or environments"):
        sampler([prompt], trainer)
    trainer.tools = []
    with pytest.raises(UserError, match=r"cannot be sampled from: .*512"):
        sampler([[{"role": "user", "content": "x" * 600}]], trainer)
    sampler.close()
    for seed in (1, 1, 2):
        trainer.args.seed, sampler = seed, TRLSampler()
        found.append(sampler([prompt] * 2, trainer)["completion_ids"])
        sampler.close()
    assert found[0] == found[1] != found[2]
    assert found[0][0] != found[0][1]
