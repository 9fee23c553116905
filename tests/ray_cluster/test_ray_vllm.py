"""A real vLLM server on a Ray cluster, with the embedded model: `make test-real VLLM_PYTHON=…`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed: `make test-real` installs it and runs these tests")

import psutil

from mini_agentic_rl.gateway import ServedPolicy
from mini_agentic_rl.policy import DEFAULT_ADAPTER, LoraSettings
from mini_agentic_rl.samplers import SamplerPool, SamplerSettings
from mini_agentic_rl.tokens import SamplingParams, TokenRequest
from processes import all_have_ended


def served_by(port: str) -> psutil.Process:
    found = []
    for one in psutil.process_iter(["cmdline"]):
        words = one.info["cmdline"] or []
        if "vllm.entrypoints.cli.main" in words[2:3] and port in words:
            found.append(one)
    (server,) = found
    return server


@pytest.mark.skipif(
    "VLLM_PYTHON" not in os.environ,
    reason="VLLM_PYTHON, the Python of an environment with vLLM, is not given: only a stand-in for vLLM runs on Ray",
)
async def test_vllm_on_a_node_samples_what_is_learnt_and_is_replaced_with_its_actor(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    settings = SamplerSettings(
        sampler="vllm",
        sampler_ray=cluster.address,
        vllm_python=Path(os.environ["VLLM_PYTHON"]),
        sampler_args="--max-model-len 1024",
        sampler_folder=tmp_path,
    )
    served = ServedPolicy.load("embedded", lora=LoraSettings(), sampler=settings, seed=1)
    try:
        pool = served.sampler
        assert isinstance(pool, SamplerPool)
        (replica,) = pool.replicas
        await served.publish()

        async def sample() -> set[int | None]:
            prompt = tuple(served.tokenizer.encode("Once there was a river that"))
            request = TokenRequest(prompt, SamplingParams(max_tokens=16, seed=5), DEFAULT_ADAPTER)
            return {delta.version async for delta in pool.complete(request) if delta.token_ids}

        assert await sample() == {served.policy.version}
        assert replica.parity is not None
        assert replica.parity.difference < pool.parity_bound
        before = replica.url
        server = served_by(before.rpartition(":")[2])
        actor = server.parent()
        assert actor is not None
        assert "VllmActor" in " ".join(actor.cmdline())
        family = [server, *server.children(recursive=True)]
        actor.kill()
        assert all_have_ended(family, 60)
        assert await sample() == {served.policy.version}  # it waits until there is one again
        assert replica.url != before
        assert replica.parity.difference < pool.parity_bound
    finally:
        served.close()
