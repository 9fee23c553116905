"""A sweep makes its runs once each, goes on where it was stopped, and ends in one table."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import pytest
from rich.console import Console
from typer.testing import CliRunner

from mini_agentic_rl.cli import app
from mini_agentic_rl.commands import SweepSettings, sweep_job, train_job
from mini_agentic_rl.commands.sweep import _show_sweep as show_sweep
from mini_agentic_rl.commands.sweep import swept_runs, train_in_process
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.trainer import RunFolder, accuracy_row, sweep_rows
from mini_agentic_rl.trainer.statistics import seed_interval, student_quantile

SMALL = {"sft_examples": 0, "total_steps": 1, "eval_size": 2, "tasks_per_step": 1, "samples_per_prompt": 2}
SMALL |= {"max_new_tokens": 4, "n_runners": 4, "transfer_size": 0, "console": False}


def _settings(model, folder, **changes):
    values = {**SMALL, "vary": ["learning_rate=1e-3,2e-3"], "seeds": [0, 1], **changes}
    return SweepSettings(model=model, output_dir=folder, **values)


def _pretend(run, file):
    """Leave what a training leaves that a sweep reads."""
    assert json.loads(file.read_text())["output_dir"] == str(run.config.run.output_dir)
    folder = RunFolder(run.config.run.output_dir)
    folder.begin(run.config.flat(), resume=True)
    rows = [accuracy_row(name, run.seed + correct, 10) for name, correct in (("before", 0), ("after RL", 5))]
    folder.write_summary({"accuracy": rows, "seconds": {"sft": 2.0, "this process": 3.0}})


def test_a_sweep_that_was_stopped_goes_on_and_finished_runs_stay(tmp_path):
    made = []

    def stopped(run, file):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(run.name)
        _pretend(run, file)

    settings = _settings("embedded", tmp_path / "sweep")
    with pytest.raises(KeyboardInterrupt):
        sweep_job(settings, stopped)
    before = {name: (tmp_path / "sweep" / name / "summary.json").stat().st_mtime_ns for name in made}
    assert [run["finished"] for run in json.loads((tmp_path / "sweep/results.json").read_text())["runs"]] == [
        *(True, True, False, False)
    ]
    with pytest.raises(UserError, match="holds a sweep: give `resume`"):
        sweep_job(settings, _pretend)
    with pytest.raises(UserError, match="was started with another total_steps"):
        sweep_job(settings.changed(resume=True, total_steps=2), _pretend)
    found = sweep_job(settings.changed(resume=True), _pretend)
    assert {name: (tmp_path / "sweep" / name / "summary.json").stat().st_mtime_ns for name in made} == before
    assert made == ["learning_rate=1e-3,seed=0", "learning_rate=2e-3,seed=0"], "all settings with the first seed first"
    assert [(row["settings"], row["seeds"]) for row in found["rows"]] == [
        ({"learning_rate": "1e-3"}, [0, 1]),
        ({"learning_rate": "2e-3"}, [0, 1]),
    ]
    assert found["rows"][0]["measurements"]["after RL"]["values"] == [0.5, 0.6]
    assert found["rows"][1]["against_first"]["seeds"] == 2
    rates = {RunFolder(run["folder"]).read_config()["learning_rate"] for run in found["runs"]}
    assert rates == {1e-3, 2e-3}
    assert not list((tmp_path / "sweep").glob("learning*.json"))

    more = sweep_job(settings.changed(resume=True, seeds=[0, 1, 2], vary=["learning_rate=1e-3"]), _pretend)
    assert more["rows"][0]["seeds"] == [0, 1, 2]
    replaced = sweep_job(settings.changed(overwrite=True, seeds=[5], vary=[]), _pretend)
    assert [run["name"] for run in replaced["runs"]] == ["seed=5"]
    assert sorted(path.name for path in (tmp_path / "sweep").iterdir()) == ["results.json", "seed=5", "sweep.json"]


def test_a_run_that_fails_is_told_and_the_others_are_made(tmp_path):
    def train(run, file):
        if run.seed == 0:
            raise UserError("out of luck")
        RunFolder(run.config.run.output_dir).begin({})
        RunFolder(run.config.run.output_dir).write_summary({"accuracy": [], "seconds": {"sft": 2.0}})

    settings = SweepSettings(output_dir=tmp_path / "sweep", seeds=[0, 1])
    found = sweep_job(settings, train)
    assert [run["failed"] for run in found["runs"]] == ["out of luck", None]
    assert found["rows"][0]["seconds"] == 2.0
    with pytest.raises(UserError, match="every run failed; the first because out of luck"):
        sweep_job(SweepSettings(output_dir=tmp_path / "other", seeds=[0]), train)


def test_a_run_of_a_sweep_is_a_training(tiny_folder, tmp_path):
    settings = _settings(tiny_folder, tmp_path / "sweep", vary=["learning_rate=3e-3"], seeds=[4])
    found = sweep_job(settings, lambda run, file: train_job(run.config))
    names = ["before", "after RL", "before, lenient", "after RL, lenient"]
    assert list(found["rows"][0]["measurements"]) == names
    config = RunFolder(found["runs"][0]["folder"]).read_config()
    assert (config["learning_rate"], config["seed"]) == (3e-3, 4)


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A program in the place of this one, which tells how it was started and waits for Ctrl-C if it is told to."""
    package = tmp_path / "path" / "mini_agentic_rl"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(STAND_IN.format(folder=tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path / "path"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


STAND_IN = """
import pathlib, sys, time
folder = pathlib.Path("{folder}")
(folder / "started").write_text(" ".join(sys.argv[1:]))
try:
    while (folder / "wait").exists():
        time.sleep(0.01)
except KeyboardInterrupt:
    time.sleep(0.2)  # a checkpoint is written
    (folder / "stopped").touch()
    sys.exit(130)
sys.exit(2)
"""


def test_ctrl_c_reaches_the_process_of_a_run_and_its_end_is_waited_for(stand_in):
    (run,) = swept_runs(SweepSettings(output_dir=stand_in / "sweep"))
    (stand_in / "wait").touch()

    def press():
        while not (stand_in / "started").exists():
            time.sleep(0.01)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        train_in_process(run, stand_in / "run.json")
    assert (stand_in / "stopped").exists()


@pytest.mark.parametrize(("agent", "command"), [("math", "train"), ("sql", "train-sql")])
def test_a_run_is_the_command_of_its_agent_and_its_failure_is_told(stand_in, agent, command):
    (run,) = swept_runs(SweepSettings(output_dir=stand_in / "sweep", agent=agent))
    with pytest.raises(UserError, match="ended with status 2"):
        train_in_process(run, stand_in / "run.json")
    assert (stand_in / "started").read_text() == f"{command} --config {stand_in / 'run.json'}"


@pytest.mark.parametrize(
    ("vary", "complaint"),
    [
        ("learning_rate", "write a setting and its values"),
        ("learning_rate=", "write a setting and its values"),
        ("seed=1,2", "--vary: seed: give --seeds"),
        ("output_dir=a,b", "no setting of `train`"),
        ("nonsense=1", "no setting of `train`"),
        ("learning_rate=often", "--vary"),
        ("policy_loss=none_such", "--vary"),
    ],
)
def test_what_cannot_be_varied_is_one_line(vary, complaint, tmp_path):
    options = ["sweep", "--vary", vary, "--output-dir", str(tmp_path / "sweep")]
    result = CliRunner().invoke(app, options, env={"COLUMNS": "200", "TERM": "dumb"})
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output
    assert complaint in result.stderr
    assert not (tmp_path / "sweep").exists()


def test_settings_are_combined_and_a_list_is_one_value():
    settings = SweepSettings(vary=["difficulty=1|1,2", "algorithm=grpo,dapo"], seeds=[0])
    runs = swept_runs(settings)
    assert [run.name for run in runs][1:3] == [
        "difficulty=1,algorithm=dapo,seed=0",
        "difficulty=1,2,algorithm=grpo,seed=0",
    ]
    assert [run.config.tasks.difficulty for run in runs] == [[1], [1], [1, 2], [1, 2]]
    assert runs[1].config.loop.dynamic_sampling


def test_a_table_has_intervals_over_seeds_or_problems():
    def summary(accuracy):
        return {
            "accuracy": [{"name": "after RL", "accuracy": accuracy, "low": 0.1, "high": 0.9}],
            "seconds": {"sft": 1},
        }

    rows = sweep_rows([({"a": "1"}, 0, summary(0.5)), ({"a": "1"}, 1, summary(0.7)), ({"a": "2"}, 0, summary(0.8))])
    of_seeds, of_problems = (row["measurements"]["after RL"] for row in rows)
    assert (of_seeds["mean"], of_seeds["values"]) == (pytest.approx(0.6), [0.5, 0.7])
    assert (of_problems["low"], of_problems["high"]) == (0.1, 0.9)
    assert rows[0]["against_first"] is None
    assert rows[1]["against_first"]["difference"] == pytest.approx(0.3)
    assert rows[1]["against_first"]["low"] is None


def test_settings_can_be_told_apart_in_a_narrow_terminal(capsys):
    measured = {
        "after SFT, lenient": {"mean": 0.5, "low": 0.4, "high": 0.6},
        "after RL": {"mean": 0.5, "low": 0, "high": 1},
    }
    against = {"difference": -1e-9, "low": -0.05, "high": 0.05}
    rows = [
        {"settings": {"learning_rate": rate}, "seeds": [0, 1, 2], "measurements": measured, "against_first": against}
        for rate in ("2e-4", "4e-4")
    ]
    show_sweep(Console(width=80), {"rows": rows, "runs": []})
    shown = capsys.readouterr().out
    first_column = "".join(line.split("│")[1].strip() for line in shown.splitlines() if line.startswith("│"))
    assert first_column == "learning_rate=2e-4learning_rate=4e-4"
    assert "+0.0" in shown
    assert "-0.0" not in shown


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423)]
)
def test_students_quantiles_are_those_of_the_tables(freedom, quantile):
    assert student_quantile(freedom, 0.95) == pytest.approx(quantile, abs=1e-4)
    assert seed_interval([1.0]) is None
    assert seed_interval([0.4, 0.6, 0.8]) == pytest.approx((0.6 - 0.4968, 0.6 + 0.4968), abs=1e-3)
