"""`parity`: whether servers sample what the learner computes, before a run finds out."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ..errors import UserError
from ..gateway import ServedPolicy
from ..policy import LoraSettings
from ..samplers import SamplerPool
from .settings import ParitySettings

logger = logging.getLogger(__name__)


def parity_job(settings: ParitySettings) -> dict[str, Any]:
    """Return, for each server, the comparisons of the bare model and of an adapter with the learner.

    Without `adapter` it is a new one, which changes nothing: it shows that servers take one.

    Raises:
        ParityError: a server computes something else; the message says what to look at.
        UserError: a server cannot be sampled from.
    """
    if settings.sampling.sampler not in ("own", "vllm", "sglang"):
        raise UserError("servers of vLLM and SGLang can be compared, no plugin's", setting="sampler")
    if settings.sampling.sampler == "own":
        raise UserError("the engine of this process is the learner's own: give `sampler=vllm`", setting="sampler")
    load = settings.load
    served = ServedPolicy.load(
        **load.model_dump(),
        lora=None if load.adapter is not None else LoraSettings(),
        sampler=settings.sampling,
        note=logger.info,
    )
    try:
        pool = served.sampler
        assert isinstance(pool, SamplerPool)
        found = {url: {"base": parity.as_dict()} for url, parity in pool.parities.items()}
        asyncio.run(served.publish())
        for url, parity in pool.parities.items():
            found.setdefault(url, {})["adapter"] = parity.as_dict()
        return {"servers": found, "bound": pool.parity_bound}
    finally:
        served.close()
