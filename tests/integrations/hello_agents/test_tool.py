"""The tool by which an agent trains, and the agent that uses it: what they answer, refuse, and how they say so."""

from __future__ import annotations

import json

import pytest

from gateway.scripted import ScriptedSampler
from gateway.small_tokenizer import CHATML_TOOLS, small_tokenizer
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.gateway.http.server import MiniLLMServer
from mini_agentic_rl.integrations.hello_agents import LLMConfig, SimpleAgent
from mini_agentic_rl.integrations.hello_agents.tool_parameters import message_of
from mini_agentic_rl.tools import RLTrainingTool
from recipes.playing import call

SMALL = {"num_epochs": 1, "batch_size": 2, "lora_r": 2, "samples_per_prompt": 2, "max_new_tokens": 4, "eval_samples": 1}


@pytest.fixture
def tool(tmp_path, tiny_folder):
    return RLTrainingTool(tmp_path, model_folders=[tiny_folder])


def ask(tool, **parameters):
    """The answer to a call that works."""
    answer = json.loads(tool.run(parameters))
    assert answer["success"], answer
    assert answer["status"] == "success"
    return answer


def refused(tool, parameters):
    """What is wrong with a call."""
    answer = json.loads(tool.run(parameters))
    assert (answer["success"], answer["status"]) == (False, "error"), answer
    return answer["message"]


def tasks(count):
    return [{"prompt": [{"role": "user", "content": f"Say {n}"}], "ground_truth": str(n)} for n in range(count)]


def letters(completions, **columns):
    return [text.count("e") / (1 + len(text)) for text in completions]


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({}, "the call is empty: give action (train, load_dataset"),
        ({"action": "train"}, "algorithm is missing. Training: sft, dpo"),
        ({"algorithm": "sft", "use_trl": True}, "no parameter 'use_trl'. Allowed: reward_type"),  # no slip for use_lora
        ({"action": "trian"}, "action 'trian' is unknown (did you mean 'train'?)"),
        ({"algorithm": "grop"}, "algorithm='grop' is not allowed (did you mean 'grpo'?). Allowed: sft, dpo"),
        ({"epochs": 3}, "train has no parameter 'epochs' (here it is 'num_epochs')"),
        ({"num_epochs": 0}, "num_epochs=0: input should be greater than or equal to 1"),
        ({"algorithm": "sft", "output_dir": "../elsewhere"}, "trainings write inside"),
        ({"algorithm": "sft", "output_dir": "."}, "trainings write inside"),
        ({"algorithm": "sft", "dataset": "os:getcwd"}, "dataset='os:getcwd' is unknown"),
        ({"algorithm": "sft", "dataset": "/etc/passwd"}, "files are read inside"),
        ({"algorithm": "sft", "dataset": "text:/etc/passwd"}, "files are read inside"),
        ({"algorithm": "sft", "dataset": "gone.jsonl"}, "there is no file"),
        ({"algorithm": "sft", "custom_dataset": "mine"}, "custom_dataset='mine' is not registered"),
        ({"algorithm": "grpo", "custom_reward": "mine"}, "custom_reward='mine' is not registered"),
        ({"action": "create_reward", "custom_reward": 3}, "custom_reward must be a function"),
        ({"algorithm": "grpo", "max_samples": 10**9}, "max_samples=1000000000: input should be less than or equal to"),
        ("{'action'", "not valid JSON"),
        ("[1]", "give a JSON object"),
    ],
)
def test_a_wrong_call_is_answered_with_what_to_change(tool, parameters, told):
    assert told in refused(tool, parameters)


def test_settings_of_errors_are_told_as_parameters_of_the_tool():
    error = UserError("'nowhere' cannot be loaded, `full_finetune` or not", setting="model")
    assert message_of(error) == "model_name: 'nowhere' cannot be loaded, use_lora=false or not"
    assert message_of(UserError("x holds a run: give\n `overwrite`", setting="output_dir")) == (
        "output_dir: x holds a run: give overwrite"
    )
    assert message_of(ValueError("odd")) == "ValueError: odd"


def test_rows_are_shown_of_generated_tasks_registered_names_and_files_in_allowed_folders(tool, tmp_path_factory):
    found = ask(tool, action="load_dataset", dataset="arithmetic", format="rl", max_samples=3, model_name="embedded")
    assert (found["dataset"], found["dataset_size"], len(found["samples"])) == ("arithmetic", 3, 2)
    assert {"prompt", "ground_truth"} <= set(found["sample_keys"])
    tool.register_dataset("written", tasks(5))
    assert ask(tool, action="load_dataset", dataset="written", max_samples=4)["dataset_size"] == 4
    folder = tmp_path_factory.mktemp("data")
    (folder / "mine.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n' * 3)
    assert ask(RLTrainingTool(folder), action="load_dataset", dataset="mine.jsonl")["dataset_size"] == 3
    call = {"action": "load_dataset", "dataset": str(folder / "mine.jsonl")}
    assert "files are read inside" in refused(tool, call)
    assert ask(RLTrainingTool(data_folders=[folder]), **call)["dataset_size"] == 3


def test_a_reward_is_tried_on_three_replies(tool):
    found = ask(tool, action="create_reward", reward_type="step", step_bonus=0.5)
    assert [example["reward"] for example in found["examples"]] == [1.5, 0.0, 0.0]
    assert found["parameters"]["step_bonus"] == 0.5
    tool.register_reward_function("letters", letters)
    found = ask(tool, action="create_reward", custom_reward="letters")
    assert found["reward_type"] == "custom"


def test_what_is_registered_must_be_of_use_and_a_link_does_not_lead_out_of_the_folder(tool, tmp_path, tmp_path_factory):
    (tmp_path / "out").symlink_to(tmp_path_factory.mktemp("elsewhere"))
    assert "trainings write inside" in refused(tool, {"algorithm": "sft", "output_dir": "out/run"})
    with pytest.raises(UserError, match="rows"):
        tool.register_dataset("empty", [])
    with pytest.raises(UserError, match="function"):
        tool.register_reward_function("none", None)
    with pytest.raises(UserError, match="max_trainings"):
        RLTrainingTool(max_trainings=0)


def test_reinforce_then_measure(tool, tiny_folder, tmp_path):
    tool.register_dataset("letters", tasks(3))
    tool.register_reward_function("letters", letters)
    options = {"model_name": tiny_folder, "dataset": "letters", "custom_reward": "letters", "output_dir": "grpo"}
    trained = ask(tool, action="train", algorithm="grpo", **options, **SMALL)
    assert (trained["algorithm"], trained["dataset_size"], trained["summary"]["steps"]) == ("grpo", 3, 1)
    assert trained["output_dir"] == str(tmp_path / "grpo")
    assert "holds a finished run" in refused(tool, {"algorithm": "grpo", **options, **SMALL})
    measured = ask(
        tool, action="evaluate", model_path="grpo", custom_dataset=tasks(3), custom_reward=letters, max_new_tokens=4
    )
    assert measured["count"] == 3
    assert 0 <= measured["average_reward"] < 1


def test_preferences_are_generated_where_no_data_set_is_named(tool, tiny_folder):
    options = {"max_samples": 8, "num_epochs": 1, "batch_size": 4, "lora_r": 2, "output_dir": "kto"}
    found = ask(tool, algorithm="kto", model_name=tiny_folder, max_steps=1, **options)
    assert (found["dataset"], found["dataset_size"], found["summary"]["steps"]) == ("arithmetic", 8, 1)


def test_every_parameter_is_described(tool):
    described = {parameter.name: parameter for parameter in tool.get_parameters()}
    assert described["action"].default == "train"
    assert described["num_epochs"].type == "integer"
    assert described["step_bonus"].actions == ("train", "create_reward", "evaluate")
    schema = tool.openai_tool["function"]["parameters"]
    assert set(schema["properties"]) == set(described)
    assert schema["required"] == ["action"]
    assert all("type" in value and value["description"] for value in schema["properties"].values())
    assert json.loads(json.dumps(schema)) == schema


def test_a_fault_is_an_answer_as_well(tool, caplog):
    def broken(completions, **columns):
        raise RuntimeError("the lights went out")

    assert refused(tool, {"action": "create_reward", "custom_reward": broken}) == "RuntimeError: the lights went out"
    assert "the lights went out" in caplog.text


@pytest.mark.parametrize("how", ["absolute", "climbing", "link", "link inside", "base", "gone"])
def test_models_are_loaded_inside_the_root_or_the_named_folders(tmp_path, how):
    root = tmp_path / "root"
    (root / "model").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "config.json").write_text("{}")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "model" / "config.json").symlink_to(tmp_path / "secret" / "config.json")
    (root / "adapter").mkdir()
    base = json.dumps({"base_model_name_or_path": str(tmp_path / "secret")})
    (root / "adapter" / "adapter_config.json").write_text(base)
    name = {
        "absolute": str(tmp_path / "secret"),
        "climbing": "../secret",
        "link": "link",
        "link inside": "model",
        "base": "adapter",
        "gone": str(tmp_path / "not there"),
    }[how]
    for given in ({"action": "evaluate"}, {"action": "train", "algorithm": "sft"}):
        message = refused(RLTrainingTool(root), {**given, "model_name": name, "dataset": "arithmetic"})
        assert "model_name" in message
        assert "models are loaded inside" in message or "is a link to elsewhere" in message


class Weather:
    """A small tool, as a `SimpleAgent` takes one."""

    openai_tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}  # noqa: RUF012

    def run(self, parameters):
        return f"sunny in {parameters['city']}"


@pytest.fixture
def agent():
    """Make an agent whose model says the given texts."""
    servers = []

    def make(answers, **options):
        tokenizer = small_tokenizer(CHATML_TOOLS)
        server = MiniLLMServer(ScriptedSampler(tokenizer, answers), tokenizer, model_name="tiny").start()
        servers.append(server)
        return SimpleAgent("helper", LLMConfig(model="tiny", base_url=server.endpoint), [Weather()], **options)

    yield make
    for server in servers:
        server.stop(timeout=1)


def test_an_agent_calls_its_tool_until_there_is_an_answer_and_a_failed_message_leaves_no_trace(agent):
    looked = call("weather", city="Bern")
    helper = agent([looked, looked, looked, "It is sunny.", call("gone"), "Sorry."], max_turns=2)
    with pytest.raises(UserError, match="max_turns"):
        helper.run("And?")
    assert len(helper.messages) == 1
    assert helper.run("How is the weather in Bern?") == "It is sunny."
    assert [message["role"] for message in helper.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert helper.messages[3]["content"] == "sunny in Bern"
    assert helper.run("Hm?") == "Sorry."
    assert "no tool 'gone'; there are weather" in helper.messages[-2]["content"]


def test_two_tools_of_one_name_and_a_key_that_is_missing(monkeypatch):
    with pytest.raises(UserError, match="same name"):
        SimpleAgent("helper", tools=[Weather(), Weather()])
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_ADMIN_KEY", raising=False)
    with pytest.raises(UserError, match="OPENAI_API_KEY"):
        SimpleAgent("helper").run("Hello")
