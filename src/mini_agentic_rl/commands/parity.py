"""`parity`: compare sampling servers with the learner before a run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..config import JsonSettings
from ..errors import UserError
from ..policy import AdaptedModelSettings, LoraSettings
from ..samplers import SamplerSettings
from ..visible_text import visible_line
from .tables import show


class ParitySettings(JsonSettings):
    """The settings of `parity`."""

    defaults: ClassVar[Mapping[str, Any]] = {"sampling.sampler": "vllm"}
    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        "Model": ("load.*",),
        "Servers that sample": ("sampling.*",),
        "Run": ("json_output",),
    }

    load: AdaptedModelSettings = AdaptedModelSettings()
    sampling: SamplerSettings = SamplerSettings()


logger = logging.getLogger(__name__)


def parity(settings: ParitySettings) -> None:
    """Compare servers that are to sample (vLLM, SGLang) with the learner, token by token."""
    result = parity_job(settings)
    show(settings, result, lambda console: show_parity(console, result))


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
    from ..gateway import ServedPolicy
    from ..samplers import SamplerPool

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


def show_parity(console: Console, found: Mapping[str, Any]) -> None:
    """Print how far the log-probabilities of each server are from the learner's."""
    table = Table("server", "weights", "tokens", "mean |difference|", "largest", title="Log-probabilities (nats)")
    for url, comparisons in found["servers"].items():
        for weights, each in comparisons.items():
            numbers = (f"{each['tokens']}", f"{each['difference']:.2g}", f"{each['largest']:.2g}")
            table.add_row(Text(visible_line(url)), weights, *numbers)
    console.print(table)
    console.print(f"all within {found['bound']:g}: they sample what is learnt", highlight=False)
