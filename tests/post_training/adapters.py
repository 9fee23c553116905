"""Adapters that do something, without training them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from tiny import tiny_tokenizer


def save_adapter(
    folder: Path, base: str, *, seed: int = 1, scores: bool = False, scale: float = 0.3, **lora: Any
) -> Path:
    """An adapter on the model in `base` as training leaves it: with its tokenizer, a reward model's with `run.json`."""
    torch.manual_seed(seed)
    architecture = AutoModelForSequenceClassification if scores else AutoModelForCausalLM
    options = {"num_labels": 1} if scores else {}
    task = {"task_type": "SEQ_CLS", "modules_to_save": ["score"]} if scores else {"task_type": "CAUSAL_LM"}
    bare = architecture.from_pretrained(base, dtype=torch.float32, **options)
    model = get_peft_model(
        bare, LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": "all-linear", **task, **lora})
    )
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, scale)
    model.save_pretrained(folder)
    tokenizer = tiny_tokenizer()
    if scores:
        tokenizer.pad_token = "<bos>"
        (folder / "run.json").write_text('{"method": "reward"}', encoding="utf-8")
    tokenizer.save_pretrained(folder)
    return folder
