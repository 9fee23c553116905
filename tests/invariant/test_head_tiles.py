"""TRL's trainers learn the same through a head that is read in small tiles: every parameter's gradient is the same."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from transformers import TrainerCallback

from mini_agentic_rl.post_training import (
    DPOSettings,
    KTOSettings,
    head_tiles,
    run,
    train_dpo,
    train_kto,
)
from post_training.samples import pairs, quick, verdicts


class Gradients(TrainerCallback):
    """Keeps each parameter's gradient at each optimizer step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, torch.Tensor]] = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        found = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
        self.steps.append({name: gradient.clone() for name, gradient in found.items()})


def _gradients(train, settings, rows):
    kept = Gradients()
    train(settings, train_rows=rows, callbacks=(kept,))
    return kept.steps


@pytest.mark.parametrize(
    ("train", "settings_class", "rows", "changes"),
    [
        (train_dpo, DPOSettings, pairs, {}),
        (train_dpo, DPOSettings, pairs, {"gradient_checkpointing": True, "lora_dropout": 0.2}),
        (train_dpo, DPOSettings, pairs, {"gradient_accumulation_steps": 2, "batch_size": 2}),
        (train_dpo, DPOSettings, pairs, {"use_lora": False, "learning_rate": 1e-3}),
        (train_kto, KTOSettings, verdicts, {}),
    ],
    ids=["dpo", "dpo, checkpointing and dropout", "dpo, accumulation", "dpo, all weights", "kto"],
)
def test_gradients_are_those_of_trls_own_head(train, settings_class, rows, changes, tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(head_tiles, "_SMALLEST", 70)
    monkeypatch.setattr(head_tiles, "_LARGEST", 0)
    monkeypatch.setattr(head_tiles, "_TILE", 16 * 70)
    settings = {name: quick(settings_class, tiny_folder, tmp_path / name, max_steps=2, **changes) for name in "ab"}
    found = _gradients(train, settings["a"], rows())
    monkeypatch.setattr(run, "answers_in_tiles", lambda *_: nullcontext())
    expected = _gradients(train, settings["b"], rows())
    assert len(found) == len(expected) == 2
    for step, bound in zip((0, 1), (1e-5, 1e-4), strict=True):  # the second also carries the step of Adam between them
        assert found[step].keys() == expected[step].keys()
        for name, gradient in expected[step].items():
            apart = (found[step][name] - gradient).norm() / gradient.norm().clamp(min=1e-6)
            assert apart < bound, (step, name, float(apart))
    assert any(gradient.any() for gradient in expected[0].values())
