"""`doctor` without a run: each check tells a fault from its absence, and the recommendation follows from figures."""

from __future__ import annotations

import json
import socket

import pytest
from typer.testing import CliRunner

from mini_agentic_rl.cli import app
from mini_agentic_rl.commands import checkup
from mini_agentic_rl.commands.checkup import HARDWARE, INSTALLATION, ports
from mini_agentic_rl.commands.speed_test import Speed, measure_speed, recommend

FAST = Speed("a model", "bfloat16", 2, sampled=450.0, learned=560.0)
ROOMY = {"memory": 30 * 10**9, "free": 1.0, "card_memory": None, "planned_peak": 2 * 10**9}
SLOW = Speed("a model", "float32", 1, sampled=30.0, learned=40.0)
SMALL = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 8192,
}


def test_a_port_that_is_taken_is_named():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        taken = listener.getsockname()[1]
        found = ports({"serve": taken})
    assert (found.state, found.found) == ("note", f"taken: {taken} (serve)")
    assert ports({"serve": taken}).state == "ok"


def test_a_folder_that_cannot_be_written_is_a_fault(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("MINI_AGENTIC_RL_CACHE", str(tmp_path / "new" / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert checkup.folders().state == "ok"
    monkeypatch.setenv("MINI_AGENTIC_RL_CACHE", str(file / "cache"))
    found = checkup.folders()
    assert (found.state, "MINI_AGENTIC_RL_CACHE" in found.advice) == ("fault", True)


def test_packages_that_are_missing_or_too_old_are_told(monkeypatch):
    monkeypatch.setattr(checkup.metadata, "requires", lambda _: ["numpy>=1", 'absent>=2; extra == "other"'])
    monkeypatch.setattr(checkup, "_CONSTRAINTS", checkup._CONSTRAINTS / "none")
    assert checkup.packages().state == "ok"
    monkeypatch.setattr(checkup.metadata, "requires", lambda _: ["numpy>=999", "no-such-package>=1"])
    found = checkup.packages()
    assert found.state == "fault"
    assert "no-such-package is missing" in found.found
    assert "not >=999" in found.found


def test_other_versions_than_were_tested_are_a_note(monkeypatch, tmp_path):
    (tmp_path / "constraints.txt").write_text("# pins\nnumpy==0.1\nno-such-package==1\n")
    monkeypatch.setattr(checkup.metadata, "requires", lambda _: ["numpy>=1"])
    monkeypatch.setattr(checkup, "_CONSTRAINTS", tmp_path / "constraints.txt")
    found = checkup.packages()
    assert (found.state, "numpy is" in found.found, "no-such-package" in found.found) == ("note", True, False)


def test_little_memory_is_a_fault(monkeypatch):
    monkeypatch.setattr(checkup, "available_memory", lambda: 10**9)
    assert checkup.memory().state == "fault"
    monkeypatch.setattr(checkup, "available_memory", lambda: 10**10)
    assert checkup.memory().state == "ok"


def test_every_check_answers_in_words():
    for check in (*INSTALLATION, *HARDWARE):
        found = check()
        assert found.name
        assert found.found
        assert found.advice or found.state != "fault"


def test_a_fast_computer_needs_nothing_changed():
    found = recommend(FAST, **ROOMY)
    assert {one.setting for one in found.options} == {"dtype"}
    assert found.train_minutes is not None
    assert 5 < found.train_minutes < 40


@pytest.mark.parametrize(
    ("changed", "speed", "setting"),
    [
        ({"memory": 10**9}, FAST, "preset"),
        ({"card_memory": 4 * 10**9}, FAST, "preset"),
        ({}, SLOW, "tasks_per_step"),
    ],
)
def test_what_is_short_changes_a_setting(changed, speed, setting):
    assert setting in {one.setting for one in recommend(speed, **{**ROOMY, **changed}).options}


def test_a_speed_beside_other_work_changes_no_size():
    assert {one.setting for one in recommend(SLOW, **ROOMY | {"free": 0.2}).options} == {"dtype"}


def test_a_recorded_run_is_foretold_in_its_parts():
    """Of that run on one thread: 1,812 s, at a speed that fits its imitation and the sampling of its steps."""
    fits = Speed("a model", "float32", 1, sampled=195.0, learned=119.0)
    assert 60 * recommend(fits, **ROOMY).train_minutes == pytest.approx(1812, rel=0.1)


def test_a_slower_computer_is_foretold_more_minutes():
    slow = Speed("a model", "float32", 1, sampled=FAST.sampled / 3, learned=FAST.learned / 3)
    assert recommend(slow, **ROOMY).train_minutes > 2 * recommend(FAST, **ROOMY).train_minutes


def test_the_speed_test_samples_and_learns():
    found = measure_speed(0.05, shape=SMALL)
    assert found.sampled > 0
    assert found.learned > 0


def test_the_command_without_a_run_tells_its_checks():
    result = CliRunner().invoke(app, ["doctor", "--no-speed-test", "--json"], env={"COLUMNS": "160"})
    found = json.loads(result.stdout)
    assert result.exit_code == int(found["faults"] > 0)
    assert {check["name"] for check in found["installation"]} > {"Python", "Packages", "torch", "Ports"}
    assert {check["name"] for check in found["hardware"]} > {"Processor", "Memory", "Disk", "GPU"}
    assert found["speed"] is None
