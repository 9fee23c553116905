"""Reward models: they tell pairs apart, score the same however they are batched, and load from their folder."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from mini_agentic_rl.errors import UserError
from mini_agentic_rl.gateway.render.renderer import ChatRenderer
from mini_agentic_rl.policy import load_model
from mini_agentic_rl.post_training import (
    RewardModelSettings,
    SFTSettings,
    load_reward_model,
    train_reward_model,
    train_sft,
)
from mini_agentic_rl.post_training.models import padding_token
from mini_agentic_rl.post_training.trl import _RewardModel
from post_training.samples import conversations, pairs, quick


@pytest.fixture(scope="module")
def judge(tiny_folder, tmp_path_factory):
    """A trained reward model and the summary of its run."""
    out = tmp_path_factory.mktemp("runs") / "judge"
    settings = quick(RewardModelSettings, tiny_folder, out, num_epochs=6)
    return out, train_reward_model(settings, train_rows=pairs(20), eval_rows=pairs(28)[20:])


def score(model, tokenizer, rows):
    width = max(map(len, rows))
    padded = [row + [tokenizer.pad_token_id] * (width - len(row)) for row in rows]
    mask = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
    with torch.no_grad():
        return model(torch.tensor(padded), attention_mask=torch.tensor(mask)).logits[:, 0]


def test_it_tells_held_out_pairs_apart(judge):
    _, summary = judge
    assert summary["pair_accuracy"]["count"] == 8
    assert summary["pair_accuracy"]["accuracy"] == 1.0
    assert summary["after"]["loss"] < summary["before"]["loss"]
    json.dumps(summary)


def test_the_saved_model_scores_as_it_was_trained_however_texts_are_padded(judge):
    folder, summary = judge
    model, tokenizer = load_reward_model(folder, device="cpu", dtype="float32")
    rows = _RewardModel(RewardModelSettings()).tokenise(ChatRenderer(tokenizer), pairs(28)[20:]).rows
    chosen = score(model, tokenizer, [row["chosen_ids"] for row in rows])
    rejected = score(model, tokenizer, [row["rejected_ids"] for row in rows])
    assert (chosen > rejected).all()
    assert (chosen - rejected).mean().item() == pytest.approx(summary["after"]["reward/margin"], rel=1e-3)
    texts = [ids for row in rows for ids in (row["chosen_ids"], row["rejected_ids"])]
    alone = torch.cat([score(model, tokenizer, [ids]) for ids in texts])
    assert torch.allclose(score(model, tokenizer, texts), alone, atol=1e-5)


def test_it_is_padded_with_a_token_that_ends_no_answer(tiny_folder):
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    assert tokenizer.pad_token == tokenizer.eos_token == "<|im_end|>"
    assert padding_token(tokenizer) not in ("<|im_end|>", None)


def test_rewards_keep_float32_under_bfloat16_weights(judge):
    model, tokenizer = load_reward_model(judge[0], device="cpu", dtype="bfloat16")
    rows = _RewardModel(RewardModelSettings()).tokenise(ChatRenderer(tokenizer), pairs(3)).rows
    scores = score(model, tokenizer, [row["chosen_ids"] for row in rows])
    assert scores.dtype == torch.float32
    assert not torch.equal(scores, scores.bfloat16().float())


def test_it_starts_from_a_fine_tuned_adapter_and_goes_on_from_a_reward_model(tiny_folder, judge, tmp_path):
    tuned, out = tmp_path / "sft", tmp_path / "from-sft"
    train_sft(quick(SFTSettings, tiny_folder, tuned), train_rows=conversations())
    train_reward_model(quick(RewardModelSettings, tuned, out, max_steps=1, learning_rate=1e-9), train_rows=pairs(4))
    before, after = load_file(tuned / "adapter_model.safetensors"), load_file(out / "adapter_model.safetensors")
    assert {name for name in after if name not in before} == {"base_model.model.score.weight"}
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)
    further = quick(RewardModelSettings, judge[0], tmp_path / "further", max_steps=1, learning_rate=1e-9)
    summary = train_reward_model(further, train_rows=pairs(8), eval_rows=pairs(28)[20:])
    assert summary["pair_accuracy"]["accuracy"] == 1.0


def test_every_weight_is_trained_without_lora(tiny_folder, tmp_path):
    out = tmp_path / "run"
    settings = quick(RewardModelSettings, tiny_folder, out, use_lora=False, learning_rate=3e-3, num_epochs=4)
    summary = train_reward_model(settings, train_rows=pairs(20))
    assert summary["after"]["loss"] < summary["before"]["loss"]
    model, tokenizer = load_reward_model(out, device="cpu", dtype="float32")
    rows = _RewardModel(settings).tokenise(ChatRenderer(tokenizer), pairs(20)).rows
    margin = score(model, tokenizer, [row["chosen_ids"] for row in rows]) - score(
        model, tokenizer, [row["rejected_ids"] for row in rows]
    )
    assert margin.mean().item() == pytest.approx(summary["after"]["reward/margin"], rel=1e-3)


def test_a_writer_is_no_judge_and_a_judge_no_writer(tiny_folder, judge):
    with pytest.raises(UserError, match="no reward model"):
        load_reward_model(tiny_folder, device="cpu")
    with pytest.raises(UserError, match="is a reward model"):
        load_model(str(judge[0]), device="cpu")
