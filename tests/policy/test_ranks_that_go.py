"""Ranks that die, hang, fail, are told to end, or were started wrongly."""

from __future__ import annotations

import itertools
import json
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mini_agentic_rl.policy import Launch, PolicyError, RankSettings, launched, restarted
from mini_agentic_rl.policy.machine import take_share
from mini_agentic_rl.policy.ranks.rendezvous import meet
from ranked import ranks

SCRIPT = Path(__file__).parent.parent / "invariant" / "ranked_run.py"
FAILING = Path(__file__).parent / "failing_run.py"
LAUNCHED = {"WORLD_SIZE": "4", "RANK": "2", "MASTER_ADDR": "host", "MASTER_PORT": "1"}


def _last_checkpoint(folder: Path) -> int:
    return max(int(path.name.removeprefix("step_")) for path in (folder / "checkpoints").iterdir())


def test_a_rank_that_dies_ends_the_run_at_its_last_checkpoint_and_a_restart_goes_on(tmp_path):
    folder = tmp_path / "grpo"
    with ranks(2, SCRIPT, str(tmp_path), "grpo", "--steps", "50") as (first, second):
        first.wait_for("step 1")
        second.send_signal(signal.SIGKILL)
        assert first.wait(60) == 1
        assert "RankLostError: rank 1 has closed its connection; `resume` continues" in first.stderr
    taken = _last_checkpoint(folder)
    assert not (folder / "summary.json").exists()
    again = {"TORCHELASTIC_RESTART_COUNT": "1"}  # no --resume: the launcher knows of none
    with ranks(2, SCRIPT, str(tmp_path), "grpo", "--steps", "50", environment=again) as (first, second):
        first.wait_for(f"step {taken + 1}")
        for process in (second, first):
            process.send_signal(signal.SIGTERM)
        assert (first.wait(60), second.wait(60)) == (143, 143)
        assert f"step {taken}\n" not in first.stderr
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").open()]
    assert steps == sorted(steps)
    assert _last_checkpoint(folder) > taken


def test_ranks_of_other_settings_are_refused_by_their_names(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        monkeypatch.setenv("MASTER_PORT", str(free.getsockname()[1]))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    # Each rank counts its runs in its own process.
    monkeypatch.setattr("mini_agentic_rl.policy.ranks.rendezvous._runs", itertools.repeat(0))

    def start(rank: int) -> None:
        meet(Launch(rank, 2, rank, 2), RankSettings(), {"loop": {"total_steps": 3 + rank, "seed": 0}, "lora": None})

    with ThreadPoolExecutor(2) as threads:
        starts = [threads.submit(start, rank) for rank in range(2)]
    for each in starts:
        with pytest.raises(PolicyError, match=r"rank 1 was started with other settings: loop\.total_steps;"):
            each.result()


@pytest.mark.parametrize(
    ("rank", "error"), [(0, "RuntimeError: this loss fails"), (1, "RankLostError: rank 1 failed: this loss fails")]
)
def test_a_rank_that_fails_amid_a_command_ends_all_with_its_error(rank, error):
    with ranks(2, FAILING, str(rank), "raises") as (first, second):
        assert first.wait(60) == 1
        assert error in first.stderr
        assert second.wait(60) == 1


def test_a_rank_that_follows_ends_with_an_error_when_the_first_dies():
    with ranks(2, FAILING, "0", "dies") as (first, second):
        assert first.wait(60) == -signal.SIGKILL
        assert second.wait(60) == 1
        assert "RankLostError: rank 0 has closed its connection" in second.stderr


def test_the_launch_is_read_from_the_variables_of_torchrun():
    assert launched({}) is None
    assert launched({"WORLD_SIZE": "1"}) is None
    found = launched({**LAUNCHED, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"})
    assert found == Launch(2, 4, 0, 2, "host")
    assert found.follows
    assert not restarted(LAUNCHED)
    assert restarted({**LAUNCHED, "TORCHELASTIC_RESTART_COUNT": "1"})


@pytest.mark.parametrize(
    ("changed", "told"),
    [({"MASTER_PORT": ""}, "MASTER_PORT is not set"), ({"RANK": "4"}, "no such rank"), ({"RANK": "x"}, "no number")],
)
def test_a_launch_that_cannot_be_is_refused_in_one_line(changed, told):
    with pytest.raises(PolicyError, match=told):
        launched({**LAUNCHED, **changed})


def test_a_rank_takes_its_share_of_the_cores_unless_a_number_was_chosen(monkeypatch):
    chosen = []
    monkeypatch.setattr("torch.set_num_threads", chosen.append)
    monkeypatch.setattr("mini_agentic_rl.policy.machine.allowed_cores", lambda: 8.0)
    take_share(2, {})
    take_share(16, {})
    take_share(2, {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "none"})
    take_share(2, {"OMP_NUM_THREADS": "3", "TORCHELASTIC_RUN_ID": "none"})
    assert chosen == [4, 1, 4]


def test_a_rank_that_stands_still_is_given_up():
    with ranks(2, FAILING, "1", "halts") as (first, _):
        assert first.wait(60) == 0
        assert first.stdout == "rank 1 was silent for 1.5 seconds (`rank_timeout`)\n"
