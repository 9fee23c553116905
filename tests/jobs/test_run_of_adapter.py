"""An adapter is measured as what it was trained as, which the folder of its run says."""

from __future__ import annotations

import json
import logging

import pytest

from mini_agentic_rl.commands import EvalSettings, TrainConfig, eval_job, train_job, trained_as
from mini_agentic_rl.commands.tasks import matching_tasks
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.policy import AdaptedModelSettings


def _run(folder, **settings):
    """Write what of a run tells where its adapter comes from, and return the adapter."""
    adapter = folder / "adapter"
    adapter.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text("{}")
    config = TrainConfig(**settings).flat()
    (folder / "config.json").write_text(json.dumps(config))
    return adapter


def _tasks(adapter, **settings):
    found = EvalSettings(adapter=adapter, **settings)
    return trained_as(found.load).tasks_for(found.tasks, found.harness)


def test_a_measurement_takes_agent_tasks_and_levels_of_the_run(tiny_folder, tmp_path, caplog):
    folder = tmp_path / "run"
    sizes = {"eval_size": 1, "max_samples": 4, "tasks_per_step": 1, "samples_per_prompt": 2, "sft_examples": 2}
    train_job(
        TrainConfig(
            model=tiny_folder, device="cpu", agent="guess", difficulty=[3], output_dir=folder, total_steps=1,
            max_new_tokens=4, checkpoint_every=1, **sizes,
        )
    )  # fmt: skip
    measure = {"model": tiny_folder, "device": "cpu", "size": 1, "max_new_tokens": 4}
    with caplog.at_level(logging.INFO):
        assert eval_job(EvalSettings(adapter=folder / "adapter", **measure))["dataset"] == "guess"
    assert "was trained as guess on guess, levels 3" in caplog.text
    checkpoint = folder / "checkpoints" / "step_1" / "adapter"
    assert _tasks(checkpoint).difficulty == _tasks(folder).difficulty == [3]
    other = eval_job(EvalSettings(adapter=folder / "adapter", dataset="arithmetic", **measure))
    assert other["dataset"] == "arithmetic"


def test_what_is_asked_for_goes_before_what_was_trained(tmp_path):
    adapter = _run(tmp_path / "run", agent="units", dataset="units", difficulty=[2])
    assert _tasks(adapter).agent == "units"
    assert _tasks(adapter, difficulty=[1]).difficulty == [1]
    assert matching_tasks(_tasks(adapter, dataset="gsm_symbolic")).agent == "math"
    asked = _tasks(adapter, agent_command="mine")
    assert "agent" not in asked.model_fields_set
    assert matching_tasks(asked, is_command=True).dataset == "arithmetic"


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


def test_damaged_settings_of_a_run_are_told(tmp_path, caplog):
    adapter = _run(tmp_path / "run")
    for text in ("[]", '{"agent": "uni'):
        caplog.clear()
        (tmp_path / "run" / "config.json").write_text(text)
        assert trained_as(AdaptedModelSettings(adapter=adapter)) is None
        assert f"{tmp_path}/run/config.json cannot be read" in caplog.text


def test_an_adapter_that_is_in_no_run_says_nothing(tmp_path, caplog):
    assert trained_as(AdaptedModelSettings()) is None
    adapter = _run(tmp_path / "run")
    for text in ('{"agent": "units"}', '{"agent": "units", "dataset": "units", "difficulty": 3}'):
        (tmp_path / "run" / "config.json").write_text(text)
        assert trained_as(AdaptedModelSettings(adapter=adapter)) is None
    (tmp_path / "run" / "config.json").unlink()
    assert trained_as(AdaptedModelSettings(adapter=adapter)) is None
    assert not caplog.text


def test_a_file_that_was_trained_on_is_measured_where_it_was_held_out(tiny_folder, tmp_path):
    file = tmp_path / "tasks.jsonl"
    rows = [{"question": f"What is {number} + 1?", "answer": str(number + 1)} for number in range(40)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = tmp_path / "run"
    train_job(
        TrainConfig(
            model=tiny_folder, device="cpu", dataset=str(file), output_dir=folder, total_steps=1, eval_size=2,
            tasks_per_step=1, samples_per_prompt=2, sft_examples=0, max_new_tokens=4,
        )
    )  # fmt: skip
    measure = {"model": tiny_folder, "adapter": folder / "adapter", "device": "cpu", "max_new_tokens": 4}
    held_out = eval_job(EvalSettings(**measure))["accuracy"][0]["count"]
    assert 0 < held_out < 40
    assert eval_job(EvalSettings(**measure, dataset=str(file)))["accuracy"][0]["count"] == 40
