"""What oneDNN keeps prepared is bounded, however many numbers of rows the passes have."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from mini_agentic_rl.policy import resolve_device
from processes import run_python

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
