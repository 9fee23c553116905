"""docs/rl-training-tool.md: what each call trains, prints and answers."""

from __future__ import annotations

import json
import re

from mini_agentic_rl.policy import load_model
from mini_agentic_rl.tools import RLTrainingTool
from pages.snippets import Ran, python_block

PAGE = "docs/rl-training-tool.md"
INSTALLED = python_block(PAGE, "get_device_info")
SFT = python_block(PAGE, '"algorithm": "sft"')
GRPO = python_block(PAGE, '"model_name": "./output/sft"')
QUESTIONS = python_block(PAGE, '"algorithm": "grop"')
OWN = python_block(PAGE, "register_dataset")
IN_HANDS = python_block(PAGE, "tool.openai_tool")
CLASSES = python_block(PAGE, "GRPOTrainerWrapper")
DPO = python_block(PAGE, "DPOTrainerWrapper(config")
STRICT = python_block(PAGE, "class Strict(")

FEW_TOKENS = {'"max_new_tokens": 48': '"max_new_tokens": 4'}


def answers(ran: Ran) -> list[dict]:
    """Return the JSON answers that a block printed."""
    return [json.loads(answer) for answer in re.findall(r"^\{\n.*?^\}", ran.printed, re.MULTILINE | re.DOTALL)]


def test_what_is_installed_is_said(here):
    printed = INSTALLED.run().printed
    assert printed.startswith("TRL is here\n{")
    assert "'device': " in printed


def test_one_call_is_one_answer_and_its_folder_a_model_for_the_next(here):
    (imitated,) = answers(SFT.run())
    assert (imitated["success"], imitated["status"], imitated["dataset_size"]) == (True, "success", 20)
    assert {"output_dir", "summary"} <= set(imitated)

    reinforced, measured = answers(GRPO.run(FEW_TOKENS))
    assert (reinforced["success"], reinforced["dataset_size"]) == (True, 8)
    assert reinforced["summary"]["steps"] == 4  # one epoch, two tasks a step
    assert measured["count"] == 4
    assert {"average_reward", "accuracy"} <= set(measured)
    for folder in ("sft", "grpo"):
        load_model(str(here / "output" / folder))


def test_questions_are_answered_and_a_wrong_parameter_comes_back_with_what_is_allowed(here):
    ran = QUESTIONS.run()
    wrong, rows, reward = answers(ran)
    assert not wrong["success"]
    assert "did you mean 'grpo'" in wrong["message"]
    assert "Allowed: sft" in wrong["message"]
    assert rows["dataset_size"] == 10
    assert {"sample_keys", "samples"} <= set(rows)
    assert len(reward["examples"]) == 3
    parameters = [line.split()[0] for line in ran.printed[ran.printed.rindex("}") :].splitlines()[1:]]
    assert parameters == [one.name for one in RLTrainingTool().get_parameters()]


def test_rows_and_rewards_of_ones_own_are_trained_on(here):
    (answer,) = answers(OWN.run({'"max_new_tokens": 16': '"max_new_tokens": 4'}))
    assert answer["success"], answer
    assert answer["dataset_size"] == 4
    load_model(str(here / "output" / "letters"))


def test_an_agent_is_bounded_to_the_folders_that_it_is_given(here):
    (here / "data").mkdir()
    names = IN_HANDS.run().names
    assert json.loads(names["answer"])["success"]
    (offered,) = names["openai_tools"]
    assert offered["type"] == "function"
    assert "action" in offered["function"]["parameters"]["properties"]
    refused = json.loads(names["tool"].run({"algorithm": "sft", "output_dir": str(here / "elsewhere")}))
    assert "trainings write inside" in refused["message"]


def test_the_classes_imitate_and_then_reinforce(here):
    CLASSES.run({"max_new_tokens=32": "max_new_tokens=4"})
    for folder in ("custom", "custom/sft/epoch_1", "custom-grpo", "custom/grpo/epoch_1"):
        load_model(str(here / "output" / folder))


def test_a_class_learns_preferences_from_a_data_set_of_hugging_face(here):
    ran = DPO.run()
    assert {"prompt", "chosen", "rejected", "fault"} <= set(ran.names["pairs"].column_names)
    assert f"] 4 {ran.names['pairs'][0]['fault']}\n" in ran.printed
    load_model(str(here / "output/dpo"))


def test_a_reward_of_ones_own_is_measured_on_replies(here):
    ran = STRICT.run()
    assert ran.names["Strict"]()(ran.names["replies"], ground_truth=["42"] * 3) == [1.0, -1.0, -2.0]
    assert ran.printed.count("\n") == 2
    assert ran.printed.startswith("{")
