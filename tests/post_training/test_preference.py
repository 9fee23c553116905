"""DPO, KTO and ORPO: what they start from, what they compute, and that they learn."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from mini_agentic_rl.errors import UserError
from mini_agentic_rl.gateway.render.renderer import ChatRenderer
from mini_agentic_rl.post_training import (
    DPOSettings,
    KTOSettings,
    ORPOSettings,
    SFTSettings,
    train_dpo,
    train_kto,
    train_orpo,
    train_sft,
)
from mini_agentic_rl.post_training.rows import preference_rows
from mini_agentic_rl.post_training.trl import _KTO
from post_training.samples import conversations, pairs, quick, verdicts
from tiny import tiny_model, tiny_tokenizer


@pytest.fixture(scope="module")
def fine_tuned(tiny_folder, tmp_path_factory):
    """An adapter that says something else than its base."""
    out = tmp_path_factory.mktemp("runs") / "sft"
    train_sft(quick(SFTSettings, tiny_folder, out, num_epochs=2), train_rows=conversations())
    return out


def test_dpo_learns_to_prefer(tiny_folder, tmp_path):
    settings = quick(DPOSettings, tiny_folder, tmp_path / "run", num_epochs=4)
    summary = train_dpo(settings, train_rows=pairs(), eval_rows=pairs(16)[12:])
    assert summary["before"]["loss"] == pytest.approx(math.log(2), rel=1e-4)
    assert summary["after"]["loss"] < 0.5
    assert summary["after"]["accuracy"] == 1.0
    assert summary["after"]["reward/margin"] > 0.5


@pytest.mark.parametrize(
    ("train", "settings_class", "rows", "at_the_reference"),
    [(train_dpo, DPOSettings, pairs, math.log(2)), (train_kto, KTOSettings, verdicts, 0.5)],
)
def test_the_reference_of_an_adapter_is_that_adapter(
    fine_tuned, tmp_path, train, settings_class, rows, at_the_reference
):
    settings = quick(settings_class, fine_tuned, tmp_path / "run", num_epochs=2)
    summary = train(settings, train_rows=rows())
    assert summary["before"]["loss"] == pytest.approx(at_the_reference, rel=1e-4)
    assert summary["after"]["loss"] < at_the_reference
    assert {path.name for path in (tmp_path / "run").iterdir() if path.is_dir()} == {
        "checkpoints",
        "epoch_1",
        "epoch_2",
    }


def test_kto_pairs_each_prompt_with_its_neighbours_answer(tiny_folder):
    renderer = ChatRenderer(AutoTokenizer.from_pretrained(tiny_folder))
    rows = _KTO(KTOSettings(batch_size=4)).tokenise(renderer, verdicts(10)).rows
    for start in (0, 4, 8):
        batch = rows[start : start + 4]
        answers = [row["completion_ids"] for row in batch]
        assert [row["KL_completion_ids"] for row in batch] == [answers[-1], *answers[:-1]]
    assert [row["label"] for row in rows] != [bool(index % 2) for index in range(10)]


def test_orpo_computes_the_papers_loss_over_answers_alone_and_learns(tiny_folder, tmp_path):
    beta, examples = 1.0, pairs(8)
    settings = quick(ORPOSettings, tiny_folder, tmp_path / "run", num_epochs=12, beta=beta, batch_size=8)
    summary = train_orpo(settings, train_rows=examples)
    assert summary["after"]["loss"] < summary["before"]["loss"] - 1
    assert summary["after"]["accuracy"] == 1.0
    model = AutoModelForCausalLM.from_pretrained(tiny_folder)
    rows = preference_rows(ChatRenderer(AutoTokenizer.from_pretrained(tiny_folder)), examples, 256).rows
    nll, count, ratio = 0.0, 0, 0.0
    for row in rows:
        logodds = []
        for side in ("chosen_ids", "rejected_ids"):
            ids = torch.tensor([row["prompt_ids"] + row[side]])
            with torch.no_grad():
                logprobs = F.log_softmax(model(ids).logits[0, :-1].double(), -1)
            start = len(row["prompt_ids"]) - 1
            found = [float(logprobs[start + k, id_]) for k, id_ in enumerate(row[side])]
            mean = sum(found) / len(found)
            logodds.append(mean - math.log1p(-math.exp(mean)))
            if side == "chosen_ids":
                nll, count = nll - sum(found), count + len(found)
        ratio -= math.log(1 / (1 + math.exp(logodds[1] - logodds[0])))
    assert summary["before"]["loss"] == pytest.approx(nll / count + beta * ratio / len(rows), rel=1e-4)


@pytest.mark.parametrize(
    ("kind", "train", "rows"), [(SFTSettings, train_sft, conversations()), (DPOSettings, train_dpo, pairs())]
)
def test_a_tokenizer_with_tokens_that_the_model_lacks_is_refused(kind, train, rows, tmp_path):
    model, tokenizer = tmp_path / "model", tiny_tokenizer()
    tiny_model(len(tokenizer) // 2).save_pretrained(model)
    tokenizer.save_pretrained(model)
    with pytest.raises(UserError, match="the tokenizer is that of another model"):
        train(quick(kind, str(model), tmp_path / "run"), train_rows=rows)
