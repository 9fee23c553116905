"""A setting under the name that it has elsewhere is refused by the name that it has here."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from mini_agentic_rl import MiniGRPO
from mini_agentic_rl.cli import app
from mini_agentic_rl.commands import TrainConfig
from mini_agentic_rl.config import OTHER_NAMES
from mini_agentic_rl.errors import UserError, nearest
from mini_agentic_rl.integrations.hello_agents import TrainingConfig
from mini_agentic_rl.policy import LearnerSettings
from mini_agentic_rl.post_training import SFTSettings


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("use_trl", "give backend='trl'"),
        ("lr", "give learner=LearnerSettings(learning_rate=…)"),
        ("lora_rank", "give lora=LoraSettings(r=…)"),
        ("use_peft", "lora=None trains every weight"),
        ("load_in_4bit", "give load_options={\"quantization\": '4bit'}"),
        ("reward_funcs", "the reward is what the agent"),
        ("report_to", "give it to Trainer(logger=…)"),
        ("cache_mib", "give engine=EngineSettings(cache_mib=…)"),
    ],
)
def test_an_argument_of_the_algorithm_that_belongs_elsewhere(name, told):
    with pytest.raises(UserError) as raised:
        MiniGRPO(**{name: 1})
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("make", "name", "told"),
    [
        (MiniGRPO, "num_generations", "here it is `samples_per_prompt`"),
        (MiniGRPO, "samples_per_promt", "did you mean `samples_per_prompt`?"),
        (TrainingConfig, "model_name_or_path", "here it is `model_name`"),
        (TrainConfig, "use_trl", "give `backend=trl`"),
        (SFTSettings, "num_train_epochs", "here it is `num_epochs`"),
    ],
)
def test_a_setting_of_another_name(make, name, told):
    with pytest.raises(ValidationError) as raised:
        make(**{name: 1})
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("command", "flag", "told"),
    [
        ("train", "--use-trl", "there is no --use-trl: here it is --backend trl"),
        ("train", "--num_generations=4", "here it is --samples-per-prompt"),
        ("sft", "--lora-rank", "here it is --lora-r"),
    ],
)
def test_an_option_of_another_name(command, flag, told):
    result = CliRunner().invoke(app, [command, flag])
    assert result.exit_code == 2
    assert told in " ".join(result.output.replace("│", " ").split())


def test_every_other_name_leads_to_a_setting():
    homes = {*TrainConfig.settings(), *SFTSettings.settings(), *MiniGRPO.settings_class.model_fields}
    homes |= {
        *LearnerSettings.model_fields,
        "model_name",
        "backend",
        "schedule",
        "checkpointing",
        "r",
        "num_train_epochs",
        "eval_steps",
        "save_steps",
    }
    assert [name for name, here in OTHER_NAMES.items() if not homes.intersection(here)] == []


def test_words_that_only_share_letters_are_not_meant():
    assert nearest("nope", ["start", "status", "stop"]) is None
    assert nearest("stpo", ["start", "status", "stop"]) == "stop"
    assert nearest("eval", ["train", "evaluate"]) == "evaluate"
    assert nearest("epochs", ["num_epochs", "max_steps"]) == "num_epochs"
