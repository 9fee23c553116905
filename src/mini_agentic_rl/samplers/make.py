"""`make_sampler`: the sampler that the settings ask for."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ..errors import UserError
from ..plugins import load_plugin, or_plugin
from ..policy import Policy
from .base import Sampler, SamplerSettings
from .clients import SglangClient, VllmClient, connect
from .policy_sampler import PolicySampler
from .pool import SamplerPool
from .replica import Replica
from .vllm_process import ServedModel, StartedServers, start_here

KEY_VARIABLE: Final = "MINI_AGENTIC_RL_SAMPLER_KEY"
"""Environment variable of the key that servers ask for."""


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
        note: called with a line about each thing that takes long.

    Raises:
        UserError: a server cannot be started or reached, or not sampled from; the message says what to change. Or the
            sampler of a plugin cannot be loaded.
    """
    if settings.sampler not in ("own", "vllm", "sglang"):
        make = load_plugin("samplers", settings.sampler, setting="sampler")
        if make is None:
            raise UserError(f"there is no sampler {settings.sampler!r}{or_plugin('samplers')}", setting="sampler")
        plugged: Sampler = make(settings, policy, base_name=base_name, prompts=prompts)
        return plugged
    model = policy.model
    if settings.sampler == "own":
        return PolicySampler(
            policy.engine, base_name=base_name, adapters=list(model.versions), context_length=model.context_length
        )
    folder = (settings.sampler_folder or Path(tempfile.mkdtemp(prefix="mini-agentic-rl-sampler-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    key = os.environ.get(KEY_VARIABLE)
    started: StartedServers | None = None
    if not settings.sampler_url:
        served = ServedModel(
            folder=model_folder,
            dtype=str(model.dtype).removeprefix("torch."),
            rank=model.rank,
            adapters=len(model.versions),
            on_cpu=model.device.type == "cpu",
        )
        started = start_here(settings, served, folder, note)
    pool: SamplerPool | None = None
    try:
        client = SglangClient if settings.sampler == "sglang" else VllmClient
        urls = [url.rstrip("/").removesuffix("/v1") for url in settings.sampler_url]
        replicas = [Replica(url, client(connect(url, key))) for url in urls]
        if started is not None:
            replicas = [Replica(each.url, client(connect(each.url, key)), each) for each in started.servers]
        end = None if started is None else started.close
        pool = SamplerPool(replicas, settings, policy, base_name=base_name, prompts=prompts, folder=folder, end=end)
        pool.connect(least_context, note)
    except BaseException:
        if pool is not None:
            pool.close()
        elif started is not None:
            started.close()
        raise
    return pool
