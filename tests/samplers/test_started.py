"""vLLM servers that are started here: their environment, and the errors where they cannot be started."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from mini_agentic_rl.errors import UserError
from mini_agentic_rl.policy import LoraSettings, load_model
from mini_agentic_rl.samplers import SamplerSettings
from mini_agentic_rl.samplers.vllm_process import serve_environment, start_servers
from tiny import tiny_model

pytestmark = pytest.mark.skipif(find_spec("vllm") is not None, reason="this environment has vLLM")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, r"`vllm_python`.*`sampler_url`"),
        ({"vllm_python": Path("/nowhere/python")}, "there is no Python at"),
        ({"vllm_python": Path(sys.executable)}, r"No module named.*vllm.*vllm-0\.log"),
    ],
    ids=["no vLLM here", "no such Python", "a server that ends"],
)
def test_a_server_that_cannot_be_started_is_refused_in_one_line(tmp_path, given, error):
    model = load_model(tiny_model(), lora=LoraSettings(r=4), device="cpu")
    with pytest.raises(UserError, match=error) as caught:
        start_servers(SamplerSettings(sampler="vllm", **given), model, "nowhere", tmp_path, lambda text: None)
    assert "\n" not in str(caught.value)


def test_servers_without_a_card_leave_memory_to_the_learner_unless_told_otherwise(monkeypatch):
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    assert serve_environment(on_cpu=True)["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert "VLLM_CPU_KVCACHE_SPACE" not in serve_environment(on_cpu=False)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "40")
    assert serve_environment(on_cpu=True)["VLLM_CPU_KVCACHE_SPACE"] == "40"
