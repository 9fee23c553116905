"""Servers that the pool starts itself: what is told where they cannot be started."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from mini_agentic_rl.errors import UserError
from mini_agentic_rl.samplers import SamplerSettings
from mini_agentic_rl.samplers.started import start_here
from mini_agentic_rl.samplers.vllm_process import ServedModel, serve_environment

MODEL = ServedModel(folder="nowhere", dtype="float32", rank=4, adapters=1, on_cpu=True)

pytestmark = pytest.mark.skipif(find_spec("vllm") is not None, reason="this environment has vLLM")


def start(folder, **given):
    told: list[str] = []
    start_here(SamplerSettings(sampler="vllm", **given), MODEL, folder, told.append).close()
    return told


def test_an_environment_without_vllm_says_which_settings_help(tmp_path):
    with pytest.raises(UserError, match=r"`vllm_python`.*`sampler_url`"):
        start(tmp_path)


def test_a_python_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match="there is no Python at"):
        start(tmp_path, vllm_python=Path("/nowhere/python"))


def test_a_server_that_ends_while_it_starts_is_told_with_its_reason_and_its_log(tmp_path):
    with pytest.raises(UserError, match=r"No module named.*vllm.*vllm-0\.log") as caught:
        start(tmp_path, vllm_python=Path(sys.executable))
    assert "\n" not in str(caught.value)


def test_servers_without_a_card_leave_memory_to_the_learner_unless_told_otherwise(monkeypatch):
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    assert serve_environment(MODEL)["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert "VLLM_CPU_KVCACHE_SPACE" not in serve_environment(replace(MODEL, on_cpu=False))
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "40")
    assert serve_environment(MODEL)["VLLM_CPU_KVCACHE_SPACE"] == "40"


@pytest.mark.parametrize(
    "given", [{}, {"sampler": "vllm", "sampler_url": ["http://a"]}, {"sampler": "sglang", "sampler_url": ["http://a"]}]
)
def test_servers_on_ray_are_those_of_vllm_that_nobody_else_has_started(given):
    with pytest.raises(ValueError, match="`sampler_ray` starts servers of `sampler=vllm`"):
        SamplerSettings(sampler_ray="auto", **given)
