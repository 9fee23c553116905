"""An adapter is measured on the tasks that it was trained for, which the folder of its run names."""

from __future__ import annotations

import json
import logging
import shutil

import pytest

from mini_agentic_rl.commands import EvalSettings, TrainConfig, eval_job, trained_as
from mini_agentic_rl.commands.tasks import matching_tasks
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.policy import AdaptedModelSettings, LoraSettings, load_model, save_weights


def _run(folder, **settings):
    """Write the files of a run that say where its adapter comes from, and return the folder of the adapter."""
    adapter = folder / "adapter"
    adapter.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text("{}")
    (folder / "config.json").write_text(json.dumps(TrainConfig(**settings).flat()))
    return adapter


@pytest.fixture(scope="module")
def adapter_of_tiny(tiny_folder, tmp_path_factory):
    """Return the folder of an adapter of the tiny model."""
    folder = tmp_path_factory.mktemp("adapter")
    save_weights(load_model(tiny_folder, lora=LoraSettings(r=2), device="cpu"), folder)
    return folder


def _tasks(adapter, **settings):
    settings = EvalSettings(adapter=adapter, **settings)
    return trained_as(settings.load).tasks_for(settings.tasks, settings.harness)


def test_a_measurement_takes_agent_tasks_and_levels_of_the_run(tiny_folder, adapter_of_tiny, tmp_path, caplog):
    folder = tmp_path / "run"
    shutil.copytree(adapter_of_tiny, _run(folder, agent="guess", dataset="guess", difficulty=[3]), dirs_exist_ok=True)
    checkpoint = shutil.copytree(adapter_of_tiny, folder / "checkpoints" / "step_1" / "adapter")
    assert _tasks(checkpoint).difficulty == _tasks(folder).difficulty == [3]
    measure = {"model": tiny_folder, "device": "cpu", "size": 1, "max_new_tokens": 4}
    with caplog.at_level(logging.INFO):
        assert eval_job(EvalSettings(adapter=folder / "adapter", **measure))["dataset"] == "guess"
    assert "was trained as guess on guess, levels 3" in caplog.text


def test_given_settings_override_those_of_the_run(tmp_path):
    adapter = _run(tmp_path / "run", agent="units", dataset="units", difficulty=[2])
    assert _tasks(adapter).agent == "units"
    assert _tasks(adapter, difficulty=[1]).difficulty == [1]
    assert matching_tasks(_tasks(adapter, dataset="gsm_symbolic")).agent == "math"
    with_command = _tasks(adapter, agent_command="mine")
    assert "agent" not in with_command.model_fields_set
    assert matching_tasks(with_command, is_command=True).dataset == "arithmetic"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"agent": "os:abort"}, "agent"),
        ({"agent": "env:openenv:http://elsewhere", "dataset": "env:openenv:http://elsewhere"}, "env"),
        ({"agent_command": "rm -r everything"}, "agent_command"),
    ],
)
def test_a_file_beside_weights_starts_nothing(settings, named, tmp_path):
    adapter = _run(tmp_path / "run", **settings)
    with pytest.raises(UserError, match="was trained as") as error:
        eval_job(EvalSettings(adapter=adapter))
    assert error.value.setting == named


@pytest.mark.parametrize(
    ("config", "is_logged"),
    [
        ("[]", True),
        ('{"agent": "uni', True),
        ('{"agent": "units"}', False),  # another kind of run
        ('{"agent": "units", "dataset": "units", "difficulty": 3}', False),
        (None, False),
    ],
)
def test_damaged_settings_of_a_run_are_logged_and_those_of_no_run_are_not(config, is_logged, tmp_path, caplog):
    adapter = _run(tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    path.unlink() if config is None else path.write_text(config)
    assert trained_as(AdaptedModelSettings(adapter=adapter)) is None
    assert (f"{path} cannot be read" in caplog.text) is is_logged
    assert is_logged or not caplog.text
    assert trained_as(AdaptedModelSettings()) is None


def test_a_file_that_was_trained_on_is_measured_on_its_held_out_tasks(tiny_folder, adapter_of_tiny, tmp_path):
    file = tmp_path / "tasks.jsonl"
    rows = [{"question": f"What is {number} + 1?", "answer": str(number + 1)} for number in range(20)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    adapter = _run(tmp_path / "run", agent="math", dataset=str(file))
    shutil.copytree(adapter_of_tiny, adapter, dirs_exist_ok=True)
    measure = {"model": tiny_folder, "adapter": adapter, "device": "cpu", "max_new_tokens": 4}
    assert eval_job(EvalSettings(**measure))["accuracy"][0]["count"] == 2
    assert eval_job(EvalSettings(**measure, dataset=str(file)))["accuracy"][0]["count"] == 20
