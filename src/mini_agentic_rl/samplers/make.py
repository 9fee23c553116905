"""The sampler that the settings ask for."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import httpx
import torch

from ..errors import UserError
from ..plugins import load_part, load_plugin, or_plugin
from ..policy import Policy
from .base import Sampler
from .own import PolicySampler
from .pool import Probing, Replica, SamplerPool
from .scores import PolicyScores
from .settings import SamplerSettings
from .started import StartedServers, start_here
from .vllm_process import ServedModel
from .wire import SglangWire, VllmWire, Wire

KEY_VARIABLE: Final = "MINI_AGENTIC_RL_SAMPLER_KEY"
"""Environment variable of the key that servers ask for."""
_FLOAT32_BOUND: Final = 0.01
_HALF_BOUND: Final = 0.1


def make_sampler(
    settings: SamplerSettings,
    policy: Policy,
    *,
    base_name: str,
    prompts: Sequence[Sequence[int]],
    model_folder: str = "",
    least_context: int = 1,
    note: Callable[[str], None] = lambda text: None,
) -> Sampler:
    """Return what samples: the policy's own engine, or a pool of servers that were reached. Blocks until they are.

    Args:
        base_name: name under which requests ask for the model without an adapter.
        prompts: token ids that servers are tried with.
        model_folder: of the base model, for servers that are started here.
        least_context: see `SamplerPool.connect`.
        note: told of what takes long.

    Raises:
        UserError: a server cannot be had, or not sampled from; the message says what to change. Or a plugin's sampler
            cannot be loaded.
    """
    model = policy.model
    if settings.sampler == "own":
        return PolicySampler(
            policy.engine,
            base_name=base_name,
            adapters=list(model.versions),
            context_length=model.context_length,
        )
    if settings.sampler not in ("vllm", "sglang"):
        return _plugged(settings, policy, base_name, prompts)
    rank = model.rank
    folder = (settings.sampler_folder or Path(tempfile.mkdtemp(prefix="mini-agentic-rl-sampler-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    key = os.environ.get(KEY_VARIABLE)
    started: StartedServers | None = None
    if not settings.sampler_url:
        served = ServedModel(
            folder=model_folder,
            dtype=str(model.dtype).removeprefix("torch."),
            rank=rank,
            adapters=len(model.versions),
            on_cpu=model.device.type == "cpu",
        )
        if settings.sampler_ray is None:
            started = start_here(settings, served, folder, note)
        else:
            key = key or secrets.token_urlsafe(32)
            started = load_part("ray_samplers", setting="sampler_ray").start_on_ray(settings, served, folder, key, note)
    try:
        urls = [url.rstrip("/").removesuffix("/v1") for url in settings.sampler_url]
        replicas = (
            [Replica(url, _wire(settings, url, key)) for url in urls]
            if started is None
            else [Replica(server.url, _wire(settings, server.url, key), server) for server in started.servers]
        )
        default = _FLOAT32_BOUND if model.dtype == torch.float32 else _HALF_BOUND
        pool = SamplerPool(
            replicas,
            base_name=base_name,
            adapters=list(model.versions),
            context_length=model.context_length,
            rank=rank,
            folder=folder,
            run=secrets.token_hex(3),
            probing=Probing(
                PolicyScores(policy), prompts, settings.parity_bound or default, bare=model.peft_model is not None
            ),
            timeout=settings.sampler_timeout,
            silence=settings.sampler_silence,
            end=None if started is None else started.close,
        )
    except BaseException:
        if started is not None:
            started.close()
        raise
    try:
        pool.connect(least_context, settings.sampler_wait, note)
    except BaseException:
        pool.close()
        raise
    return pool


def _plugged(settings: SamplerSettings, policy: Policy, base_name: str, prompts: Sequence[Sequence[int]]) -> Sampler:
    """Return the sampler of a plugin, which is called with `settings`, `policy`, `base_name` and `prompts`."""
    make = load_plugin("samplers", settings.sampler, setting="sampler")
    if make is None:
        raise UserError(f"there is no sampler {settings.sampler!r}{or_plugin('samplers')}", setting="sampler")
    made: Sampler = make(settings, policy, base_name=base_name, prompts=prompts)
    return made


def _wire(settings: SamplerSettings, url: str, key: str | None) -> Wire:
    client = httpx.AsyncClient(
        base_url=url,
        headers={} if key is None else {"Authorization": f"Bearer {key}"},
        # An answer may wait for its turn; a server that hangs is told by all of its answers.
        timeout=httpx.Timeout(None, connect=10.0),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        trust_env=False,
    )
    return SglangWire(client) if settings.sampler == "sglang" else VllmWire(client)
