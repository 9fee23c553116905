"""Small examples of each form, settings for runs of a second, and adapters that do something without training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from mini_agentic_rl.post_training import PostTrainingSettings
from tiny import tiny_tokenizer

WORDS = ("apples", "answer", "weather", "result", "system", "expression", "tool", "many", "name", "assistant")
QUICK = {
    "device": "cpu",
    "dtype": "float32",
    "batch_size": 4,
    "learning_rate": 1e-2,
    "lora_r": 4,
    "lora_alpha": 8,
    "max_length": 256,
    "logging_steps": 1,
    "console": False,
    "eval_fraction": 0.0,
}


def conversations(count: int = 12) -> list[dict]:
    """Ask for a word, get it back."""
    return [
        {"messages": [{"role": "user", "content": f"Say {word}"}, {"role": "assistant", "content": f"The {word}"}]}
        for word in (WORDS[index % len(WORDS)] for index in range(count))
    ]


def pairs(count: int = 12) -> list[dict]:
    """The word that was asked for is better than another."""
    return [
        {
            "prompt": [{"role": "user", "content": f"Say {word} {index}"}],
            "chosen": [{"role": "assistant", "content": f"The {word}"}],
            "rejected": [{"role": "assistant", "content": "What weather"}],
        }
        for index, word in ((index, WORDS[index % len(WORDS)]) for index in range(count))
    ]


def verdicts(count: int = 12) -> list[dict]:
    """Answers to those questions, each good or bad."""
    return [
        {
            "prompt": pair["prompt"],
            "completion": pair["chosen"] if index % 2 else pair["rejected"],
            "label": bool(index % 2),
        }
        for index, pair in enumerate(pairs(count))
    ]


def quick(settings_class: type[PostTrainingSettings], model: str, output_dir, **changes) -> PostTrainingSettings:
    """Settings of a run of a second."""
    return settings_class(**{**QUICK, "model": str(model), "output_dir": output_dir, **changes})


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
