"""Two ranks on hosts of their own, with nothing between them but a network, are one policy all the same."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from safetensors.torch import load_file

from pages.shell import free_port
from processes import PythonProcess
from ranked import run_on_ranks

from .conftest import SIZE
from .lan import lan

SCRIPT = Path(__file__).parents[1] / "invariant" / "ranked_run.py"


@pytest.mark.skipif(SIZE < 1, reason="ranks on two hosts are left to `make torture`; tests/invariant/ has them on one")
def test_two_ranks_on_two_hosts_end_with_the_weights_of_one(tmp_path: Path) -> None:
    nodes = ("node-0", "node-1")
    with lan(*nodes) as network, contextlib.ExitStack() as stack:
        shared = {
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "1",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": network.addresses["node-0"],
            "MASTER_PORT": str(free_port()),
            "OMP_NUM_THREADS": "1",
        }
        started = []
        for rank, node in enumerate(nodes):
            environment = {**shared, "RANK": str(rank)}
            process = PythonProcess(
                SCRIPT, str(tmp_path / "two"), "grpo", environment=environment, setup=network.entering(node)
            )
            started.append(stack.enter_context(process))
        for process in started:
            status = process.wait(600)
            assert status == 0, "\n".join(each.stderr[-3000:] for each in started)
    run_on_ranks(1, SCRIPT, str(tmp_path / "one"), "grpo")
    one, two = (load_file(tmp_path / name / "adapter" / "adapter_model.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    assert max(float((tensor - two[name]).abs().max()) for name, tensor in one.items()) < 1e-5
