"""A real Ray cluster of two nodes on this computer: `make test-real`, in an environment that has Ray."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from ray_runs import actors

from processes import all_have_ended


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Yield a cluster of two nodes with room for two runners each."""
    pytest.importorskip("ray", reason="Ray is not installed: `make test-real` installs it and runs these tests")
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}
    from ray.cluster_utils import Cluster

    size = {"num_cpus": 2, "object_store_memory": 80 * 2**20}
    made = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **size})
    made.add_node(**size)
    yield made
    made.shutdown()
    assert all_have_ended(actors(), 20)


@pytest.fixture(autouse=True)
def _no_runner_is_left() -> Iterator[None]:
    yield
    assert all_have_ended(actors(), 20), actors()
