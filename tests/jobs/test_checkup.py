"""`doctor` without a run: the checks of the computer, and what follows from the measured speed."""

from __future__ import annotations

import json
import socket

import pytest
import torch

from command_line import invoke
from mini_agentic_rl.commands import checkup
from mini_agentic_rl.commands.checkup import ports
from mini_agentic_rl.commands.speed_test import Speed, measure_speed, minutes_of_train, save_speed, saved_speed

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
        check = ports({"serve": taken})
    assert (check.state, check.found) == ("note", f"taken: {taken} (serve)")
    assert ports({"serve": taken}).state == "ok"


def test_a_folder_that_cannot_be_written_is_a_fault(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("MINI_AGENTIC_RL_CACHE", str(tmp_path / "new" / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert checkup.folders().state == "ok"
    monkeypatch.setenv("MINI_AGENTIC_RL_CACHE", str(file / "cache"))
    check = checkup.folders()
    assert (check.state, "MINI_AGENTIC_RL_CACHE" in check.advice) == ("fault", True)


def test_packages_that_are_missing_or_too_old_are_told(monkeypatch):
    monkeypatch.setattr(checkup.metadata, "requires", lambda _: ["numpy>=1", 'absent>=2; extra == "other"'])
    assert checkup.packages().state == "ok"
    monkeypatch.setattr(checkup.metadata, "requires", lambda _: ["numpy>=999", "no-such-package>=1"])
    check = checkup.packages()
    assert check.state == "fault"
    assert "no-such-package is missing" in check.found
    assert "not >=999" in check.found


def test_what_does_not_fit_into_memory_is_recommended_a_preset(monkeypatch):
    monkeypatch.setattr(checkup, "embedded_is_pulled", lambda: True)
    monkeypatch.setattr(checkup, "plan_job", lambda _: {"peak_bytes": 2 * 10**9})
    monkeypatch.setattr(checkup.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(checkup, "available_memory", lambda: 30 * 10**9)
    assert checkup._reason_for_preset() is None
    monkeypatch.setattr(checkup, "available_memory", lambda: 10**9)
    assert "1.0 GB are free and 2.0 GB are planned" in checkup._reason_for_preset()
    assert checkup.memory().state == "fault"


def test_the_minutes_of_a_recorded_run_are_predicted():
    """Of that run on one thread: 1,812 s, at a speed that fits its imitation and the sampling of its steps."""
    speed = Speed("a model", "float32", 1, sampled=195.0, learned=119.0)
    assert 60 * minutes_of_train(speed) == pytest.approx(1812, rel=0.1)


def test_a_measured_speed_is_kept_for_the_plan(monkeypatch, tmp_path):
    monkeypatch.setenv("MINI_AGENTIC_RL_CACHE", str(tmp_path / "cache"))
    assert saved_speed(torch.float32) is None
    speed = Speed("a model", "float32", torch.get_num_threads(), sampled=195.0, learned=119.0)
    save_speed(speed)
    assert saved_speed(torch.float32) == speed
    assert saved_speed(torch.bfloat16) is None
    (tmp_path / "cache" / "speed.json").write_text("{")
    assert saved_speed(torch.float32) is None


def test_the_speed_test_samples_and_learns():
    speed = measure_speed(0.5, shape=SMALL)
    assert speed.sampled > 0
    assert speed.learned > 0


def test_the_command_without_a_run_prints_every_check():
    result = invoke("doctor", "--no-speed-test", "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == int(report["faults"] > 0)
    assert {check["name"] for check in report["installation"]} > {"Python", "Packages", "torch", "Ports"}
    assert {check["name"] for check in report["hardware"]} > {"Processor", "Memory", "Disk", "GPU"}
    for check in (*report["installation"], *report["hardware"]):
        assert check["found"]
        assert check["advice"] or check["state"] != "fault"
    assert report["speed"] is None
