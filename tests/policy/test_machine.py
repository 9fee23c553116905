"""Threads follow the cores that are free, and caches of prepared products are bounded."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from mini_agentic_rl.policy import PolicyError, resolve_device
from mini_agentic_rl.policy.machine import ThreadCount
from processes import run_python


class Machine:
    """A machine of some cores, on which others compute as the test says."""

    def __init__(self, cores, monkeypatch):
        self.seconds = self.busy = self.own = 0.0
        monkeypatch.setattr("mini_agentic_rl.policy.machine.psutil.cpu_count", lambda: cores)
        monkeypatch.setattr("mini_agentic_rl.policy.machine._times", lambda: (self.seconds, self.busy, self.own))
        self.count = ThreadCount()

    def run(self, seconds, others):
        """Let time go by, in which we compute with the threads we have and others use so many cores."""
        self.seconds += seconds
        self.own += seconds * torch.get_num_threads()
        self.busy += seconds * (torch.get_num_threads() + others)
        self.count.adapt()
        return torch.get_num_threads()


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setattr("mini_agentic_rl.policy.machine.allowed_cores", lambda: 4.0)
    return Machine(4, monkeypatch)


def test_a_core_that_another_process_uses_is_left_to_it_and_taken_back(machine):
    assert machine.run(1, others=0) == 4
    assert machine.run(1, others=0.7) == 3  # half a share is enough to come late
    assert machine.run(1, others=2) == 2
    assert machine.run(1, others=9) == 1
    assert machine.run(1, others=0.2) == 4


def test_a_moment_of_work_elsewhere_changes_nothing(machine):
    assert machine.run(0.1, others=2) == 4
    assert machine.run(0.9, others=0) == 4


def test_what_the_program_has_chosen_is_not_exceeded(monkeypatch):
    monkeypatch.setattr("mini_agentic_rl.policy.machine.allowed_cores", lambda: 16.0)
    torch.set_num_threads(2)
    assert Machine(16, monkeypatch).run(1, others=0) == 2


@pytest.mark.parametrize(("quota", "threads"), [(1.5, 1), (2.0, 2), (2.7, 3), (0.5, 1)])
def test_a_container_gets_as_many_threads_as_its_quota_has_cores(monkeypatch, quota, threads):
    monkeypatch.setattr("mini_agentic_rl.policy.machine.allowed_cores", lambda: quota)
    machine = Machine(8, monkeypatch)
    machine.run(1, others=0)
    assert min(torch.get_num_threads(), machine.count._most) == threads


def test_fixed_it_stays_as_it_is(machine):
    machine.count.fix()
    assert machine.run(1, others=3) == 4


PRODUCTS = """
import psutil, torch
from mini_agentic_rl.policy import resolve_device

assert resolve_device("cpu").type == "cpu"
weight = torch.ops.mkldnn._reorder_linear_weight(torch.randn(96, 48), 16)
rows = torch.randn(500, 48)
with torch.inference_mode():
    for count in range(1, 501):
        torch.ops.mkldnn._linear_pointwise(rows[:count], weight, None, "none", [], "")
        if count == 250:
            before = psutil.Process().memory_info().rss
print((psutil.Process().memory_info().rss - before) // 2**20)
"""


@pytest.mark.skipif(
    sys.platform != "linux", reason="torch may multiply without oneDNN here: the bound of its memory is left unchecked"
)
def test_products_of_ever_other_rows_take_no_further_memory(tmp_path: Path) -> None:
    script = tmp_path / "products.py"
    script.write_text(PRODUCTS)
    grown, _ = run_python(script)
    assert int(grown) < 40, "250 further products take 117 MiB where each stays prepared"


def test_capacities_of_the_environment_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "7")
    monkeypatch.delenv("LRU_CACHE_CAPACITY", raising=False)
    resolve_device("cpu")
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "7"
    assert int(os.environ["LRU_CACHE_CAPACITY"]) > 0


@pytest.mark.parametrize("device", ["gpu", "cpu:", "hpu", "xpu" if sys.platform == "darwin" else "mps"])
def test_a_device_that_torch_does_not_have_is_an_error_of_that_setting(device):
    with pytest.raises(PolicyError, match=rf"^device: .*{device}"):
        resolve_device(device)
