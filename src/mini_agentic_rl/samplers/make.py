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
from .clients import SglangClient, VllmClient
from .policy_sampler import PolicySampler
from .pool import SamplerPool
from .replica import Replica
from .vllm_process import start_servers

KEY_VARIABLE: Final = "MINI_AGENTIC_RL_SAMPLER_KEY"
"""Environment variable with the API key of the servers."""


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
    """Return the engine of the policy as a sampler, or a pool of servers. Blocks until the servers are ready.

    Args:
        base_name: name of the model without an adapter in requests.
        prompts: token ids of the first comparison of servers with the learner.
        model_folder: folder or id of the base model, for servers that are started.
        least_context: tokens that prompt and answer together must have room for.
        note: called with a line of progress at each slow step.

    Raises:
        UserError: a server cannot be started, reached or sampled from; the message says what to change. Or there is no
            plugin of this name, or it cannot be loaded.
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
    if model.rank is None:
        raise UserError(
            "vLLM and SGLang servers are given adapters, and all weights of the model are trained here: use "
            "`sampler=own`, or train an adapter",
            setting="sampler",
        )
    folder = (settings.sampler_folder or Path(tempfile.mkdtemp(prefix="mini-agentic-rl-sampler-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    key = os.environ.get(KEY_VARIABLE)
    if settings.sampler_url:
        urls = [url.rstrip("/").removesuffix("/v1") for url in settings.sampler_url]
        client = SglangClient if settings.sampler == "sglang" else VllmClient
        replicas = [Replica(url, client(url, key)) for url in urls]
    else:
        servers = start_servers(settings, model, model_folder, folder, note)
        replicas = [Replica(server.url, VllmClient(server.url, key), server) for server in servers]
    pool = SamplerPool(replicas, settings, policy, base_name=base_name, prompts=prompts, folder=folder)
    try:
        pool.connect(least_context, note)
    except BaseException:
        pool.close()
        raise
    return pool
