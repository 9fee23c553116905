"""A run whose rollouts all fail ends as a failure that names the cause; a warning of one cause is said once."""

from __future__ import annotations

import json
import logging

import pytest
from letters import TASKS, CountLetters, Kept, Letters, algorithm

from mini_agentic_rl import LitAgent, MiniGRPO, Trainer
from mini_agentic_rl.errors import RunFailedError
from mini_agentic_rl.metrics import MetricsLogger
from tiny import tiny_model, tiny_tokenizer

SMALL = {"tasks_per_step": 2, "samples_per_prompt": 2, "eval_size": 2, "checkpoint_every": 1}


class Broken(LitAgent):
    """Cannot reach what it needs."""

    def rollout(self, task):
        raise ConnectionError(f"cannot connect to port {len(task['word'])}{task['word'].count('o')}")


class Sometimes(Letters):
    """Half of its tasks fail."""

    async def rollout_async(self, task, resources, rollout):
        if "o" in task["word"]:
            raise ConnectionError("no route to host")
        await super().rollout_async(task, resources, rollout)


def test_a_training_names_the_most_frequent_error_and_its_folder_holds_no_finished_run(tmp_path, caplog):
    trainer = Trainer(
        algorithm=algorithm(total_steps=2, **SMALL), n_runners=4, output_dir=tmp_path, logger=MetricsLogger()
    )
    cause = "all 8 rollouts of the training failed: attempt failed: the agent: ConnectionError: cannot connect to port"
    with caplog.at_level(logging.WARNING), pytest.raises(RunFailedError, match=cause):
        trainer.fit(Broken(), TASKS, val_dataset=TASKS)
    assert not (tmp_path / "summary.json").exists()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step_0"]
    said = [record.name.rpartition(".")[2] for record in caplog.records if "cannot connect" in record.message]
    assert sorted(said) == ["attempt", "rollouts"]


def test_a_run_is_mended_and_resumed_after_it_has_failed(tmp_path):
    class Letters(Broken):
        pass

    for agent in (Letters, globals()["Letters"]):
        trainer = Trainer(
            algorithm=algorithm(total_steps=1, **SMALL),
            hooks=[CountLetters()],
            n_runners=4,
            output_dir=tmp_path,
            resume=True,
            logger=MetricsLogger(),
        )
        if agent is Letters:
            with pytest.raises(RunFailedError):
                trainer.fit(agent(), TASKS)
        else:
            trainer.fit(agent(), TASKS)
    assert json.loads((tmp_path / "summary.json").read_text())["untrained"] == {}


def test_what_fails_again_and_again_is_told_once_and_counted_at_the_end(caplog):
    kept = Kept()
    trainer = Trainer(algorithm=algorithm(total_steps=4, **SMALL), hooks=[CountLetters()], n_runners=4, logger=kept)
    with caplog.at_level(logging.WARNING):
        trainer.fit(Sometimes(), TASKS)
    assert sum("no route to host" in record.message for record in caplog.records) == 2
    assert any("of 16 rollouts were not trained" in note and "no route to host" in note for note in kept.notes)


def test_the_parameters_that_are_trained_are_told_at_the_start():
    kept = Kept()
    tokenizer = tiny_tokenizer()
    model = tiny_model(len(tokenizer))
    whole = sum(parameter.numel() for parameter in model.parameters())
    trained = MiniGRPO(model, tokenizer, total_steps=1, max_new_tokens=2, **SMALL)
    Trainer(algorithm=trained, hooks=[CountLetters()], n_runners=4, logger=kept).fit(Letters(), TASKS)
    counted = trained.summary["parameters"]
    assert counted["all"] == whole + counted["trained"]
    share = f"{100 * counted['trained'] / counted['all']:.2f} %"
    assert trained.summary["kernels"] == "torch"  # the tiny model is in float32
    assert f"training {counted['trained']:,} of {counted['all']:,} parameters ({share})" in kept.notes
