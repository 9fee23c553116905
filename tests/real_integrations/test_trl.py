"""One environment class in both: in TRL's own GRPOTrainer, and here, unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from integrations.trl.test_trl_environment import Counter
from mini_agentic_rl import rl
from tiny import tiny_model, tiny_tokenizer

trl = pytest.importorskip("trl", reason="trl is not installed: its environments are left unchecked")


class Till(Counter):
    """Counts how often it was reset and asked for its reward."""

    resets = 0
    asked = 0

    def reset(self, **row) -> str:
        type(self).resets += 1
        return super().reset()

    def get_reward(self) -> float:
        type(self).asked += 1
        return float(type(self).asked % 3)


ROWS = [{"prompt": [{"role": "user", "content": f"{number} and {42 - number}."}]} for number in range(1, 5)]


def by_trl(folder, factory):
    from datasets import Dataset

    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    model = tiny_model(len(tokenizer))
    model.config.max_position_embeddings = 4096
    settings = trl.GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        num_generations=2,
        max_completion_length=8,
        max_steps=2,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
    )
    trainer = trl.GRPOTrainer(
        model,
        args=settings,
        train_dataset=Dataset.from_list(ROWS),
        processing_class=tokenizer,
        environment_factory=factory,
    )
    trainer.train()
    return trainer.state.global_step


def by_us(folder, factory, model):
    values = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 1, "samples_per_prompt": 2}
    config = rl.TrainingConfig(model_name=model, output_dir=str(folder), max_steps=2, max_new_tokens=8, **values)
    return rl.GRPOTrainerWrapper(config, ROWS, environment_factory=factory).train()["steps"]


def test_the_same_class_is_trained_by_both(tmp_path, tiny_folder):
    for train in (lambda kind: by_trl(tmp_path / "trl", kind), lambda kind: by_us(tmp_path / "us", kind, tiny_folder)):
        kind = type("Till", (Till,), {"resets": 0, "asked": 0})
        assert train(kind) == 2
        assert (kind.resets, kind.asked) == (8, 8)
