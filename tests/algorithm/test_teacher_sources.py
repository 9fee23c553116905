"""Where a teacher comes from: the bare model, an adapter beside the policy's, or a model of its own."""

from __future__ import annotations

import math

import pytest
from letters import TASKS, CountLetters, Letters, algorithm
from pydantic import ValidationError

from mini_agentic_rl import Trainer
from mini_agentic_rl.commands.train import make_algorithm
from mini_agentic_rl.commands.train_config import TrainConfig
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.policy import DEFAULT_ADAPTER, LoraSettings, load_model
from mini_agentic_rl.policy.load import save_weights
from tiny import tiny_model, tiny_tokenizer

SIZES = {"total_steps": 1, "tasks_per_step": 1, "samples_per_prompt": 4, "reward_coef": 0.0, "lora": LoraSettings(r=4)}


@pytest.mark.parametrize("distillation", ["sampled", "top_k"])
def test_a_teacher_is_the_bare_model_an_adapter_or_another_model(tmp_path, kept, distillation):
    tokenizer = tiny_tokenizer()
    adapted = load_model(tiny_model(len(tokenizer)), lora=LoraSettings(r=2))
    for name, parameter in adapted.base.named_parameters():
        if "lora_B" in name:
            parameter.data.fill_(0.3)
    save_weights(adapted, tmp_path / "adapter", DEFAULT_ADAPTER)
    tiny_model(len(tokenizer), seed=5, layers=1).save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    distances = []
    for teacher in ("base", str(tmp_path / "adapter"), str(tmp_path / "other")):
        trained = algorithm(**SIZES, teacher=teacher, distillation=distillation)
        Trainer(algorithm=trained, hooks=[CountLetters()], n_runners=4, logger=kept).fit(Letters(), TASKS[:1])
        distances.append(kept.rows[-1]["teacher/kl"])
    bare, adapter, other = distances
    assert bare == pytest.approx(0, abs=1e-4)  # a new adapter changes nothing yet
    assert abs(adapter) > 1e-3
    assert abs(other) > 1e-3
    assert all(map(math.isfinite, distances))


def test_a_teacher_with_other_tokens_is_refused(tmp_path):
    tokenizer = tiny_tokenizer()
    tiny_model(len(tokenizer)).save_pretrained(tmp_path / "other")
    tokenizer.add_tokens(["another"])
    tokenizer.save_pretrained(tmp_path / "other")
    trained = algorithm(**SIZES, teacher=str(tmp_path / "other"))
    with pytest.raises(UserError, match="another tokenizer"):
        Trainer(algorithm=trained, hooks=[CountLetters()], n_runners=4).fit(Letters(), TASKS[:1])


def test_the_command_takes_all_of_it_by_name():
    given = TrainConfig(
        separate_rewards="correct,format",
        separate_reward_weights="1,0.5",
        advantage_normalization="batch",
        teacher="self",
        distillation="top_k",
        echo_coef=0.05,
    )
    settings = make_algorithm(given).settings
    assert (settings.separate_rewards, settings.separate_reward_weights) == (["correct", "format"], [1.0, 0.5])
    assert (settings.teacher, settings.distillation, settings.echo_coef) == ("self", "top_k", 0.05)
    with pytest.raises(ValidationError, match="`teacher` is not PPO's"):
        TrainConfig(algorithm="ppo", teacher="base")
