"""`plan`: what a run will hold in memory, and the settings that fit; and the presets of `train`, which choose by it."""

from __future__ import annotations

import importlib.util
import logging
import re
from typing import Any

import torch

from ..errors import UserError
from ..policy import (
    CPU_CHUNK,
    MOST_LEARNT_AT_ONCE,
    MemoryPlan,
    ModelShape,
    PlannedSettings,
    PlannedWork,
    Spread,
    fastest_within,
    fitting_plan,
    kernels,
    plan_rank,
    resolve_device,
    resolve_dtype,
    resolve_model,
)
from .config import TrainConfig
from .settings import PlanSettings
from .spread import model_of_run, rates_of_run, spread_report

logger = logging.getLogger(__name__)

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}
_PRESETS = {"4gb": 4 * 10**9}
_CONTEXT_BYTES = 450 * 10**6
"""Bytes that a CUDA context takes of a card beside what torch allocates."""
_PROMPT_TOKENS = 512


def plan_job(settings: PlanSettings) -> dict[str, Any]:
    """The plan as JSON: `parts` and `peak_bytes` of a rank, the `options` of `train` that go with it, and what
    `spread_report` tells.

    Raises:
        UserError: there is no such model, nothing fits into `vram`, or `rates` names no run.
    """
    on_cpu = _on_cpu(settings.load.device, settings.vram)
    loop = settings.loop
    shape = _shape(settings.load.model)
    work = PlannedWork(loop.tasks_per_step, loop.samples_per_prompt, settings.prompt_tokens, loop.max_new_tokens)
    asked = _asked(settings, on_cpu=on_cpu, bitsandbytes=not on_cpu)
    shard = settings.team.shard and settings.ranks > 1
    spread = Spread(settings.ranks, shard, settings.replicas or int(shard or settings.sampling.sampler != "own"))

    def predict(candidate: PlannedSettings) -> MemoryPlan:
        return plan_rank(shape, work, candidate, spread, on_cpu=on_cpu)

    if settings.vram is None:
        plan = predict(asked)
    else:
        limit = read_size(settings.vram)
        plan = fastest_within(predict, asked, limit, quantizes=not on_cpu)
        if plan.peak > limit:
            raise UserError(
                f"{settings.vram}: the smallest settings need {plan.peak / 1e9:.2f} GB; "
                "shorten `prompt_tokens` or `max_new_tokens`, or choose a smaller `model`",
                setting="vram",
            )
    rates = None
    if settings.rates is not None:
        rates = rates_of_run(settings.rates, _shape(model_of_run(settings.rates)))
    return {
        "model": settings.load.model,
        "ranks": spread.ranks,
        "peak_bytes": plan.peak,
        "parts": [{"name": part.name, "phase": part.phase, "bytes": part.bytes} for part in plan.parts],
        "options": _options(settings, asked, plan),
        **spread_report(
            shape, work, plan.settings, spread, on_cpu=on_cpu, rates=rates, max_staleness=loop.max_staleness
        ),
    }


def apply_preset(settings: TrainConfig) -> TrainConfig:
    """The settings with those of its preset that save memory.

    Raises:
        UserError: nothing fits into the preset's memory.
    """
    if settings.preset == "none":
        return settings
    if settings.full_finetune:
        raise UserError(f"{settings.preset} trains an adapter: leave `full_finetune` out", setting="preset")
    on_cpu = resolve_device(settings.load.device).type == "cpu"
    limit = _PRESETS[settings.preset] - (0 if on_cpu else _CONTEXT_BYTES)
    quantizes = not on_cpu and importlib.util.find_spec("bitsandbytes") is not None
    asked = _asked(settings, on_cpu=on_cpu, bitsandbytes=quantizes)
    loop = settings.loop
    work = PlannedWork(loop.tasks_per_step, loop.samples_per_prompt, _PROMPT_TOKENS, 2 * loop.max_new_tokens)
    plan = fitting_plan(_shape(settings.load.model), work, asked, limit, on_cpu=on_cpu, quantizes=quantizes)
    if plan.peak > limit:
        raise UserError(
            f"{settings.preset}: `model={settings.load.model}` needs {plan.peak / 1e9:.2f} GB even with the "
            f"smallest settings{'' if quantizes or on_cpu else ' (bitsandbytes would allow 4 bits)'}; "
            "choose a smaller model",
            setting="preset",
        )
    chosen = plan.settings
    changes = _changes(asked, chosen)
    logger.info("preset %s: %s; planned peak %.2f GB", settings.preset, changes, plan.peak / 1e9)
    return settings.changed(
        quantization=chosen.quantization,
        gradient_checkpointing=chosen.checkpointing,
        max_batch_tokens=chosen.max_batch_tokens,
        cache_mib=chosen.cache_mib,
        # On a CPU nothing is recorded, whatever is said.
        cuda_graphs=settings.engine.cuda_graphs and (on_cpu or chosen.cuda_graphs),
    )


def read_size(text: str) -> int:
    """Bytes of "4GB", "3500 MB", "4GiB", "4G" or a plain number of bytes.

    Raises:
        UserError: it is none of these, or a plain number that somebody meant as gigabytes.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMG]I?)B?)?\s*", text.upper())
    if found is None:
        raise UserError(f"{text!r} is no size: write 4GB, 3500MB or 4GiB", setting="vram")
    size = int(float(found[1]) * _UNITS[found[2] or ""])
    if size < 10**6:
        raise UserError(
            f"{text} is {size:,} bytes, less than any model needs: write the unit, as in 4GB", setting="vram"
        )
    return size


def _asked(settings: PlanSettings | TrainConfig, *, on_cpu: bool, bitsandbytes: bool) -> PlannedSettings:
    dtype = _dtype(settings.load.dtype, on_cpu=on_cpu)
    return PlannedSettings(
        dtype=dtype,
        quantization=settings.load.quantization,
        lora_r=settings.lora.r,
        lora_dropout=settings.lora.dropout,
        checkpointing=settings.learner.checkpointing,
        max_batch_tokens=settings.learner.max_batch_tokens or (CPU_CHUNK if on_cpu else MOST_LEARNT_AT_ONCE),
        cache_mib=settings.engine.cache_mib,
        optimizer_8bit=bitsandbytes,
        cuda_graphs=settings.engine.cuda_graphs and not on_cpu,
        side_by_side=settings.loop.max_staleness > 0,
        samples_elsewhere=settings.engine.sampler_device is not None,
        compiled=on_cpu and kernels.usable(dtype, torch.device("cpu")),
    )


def _shape(model: str) -> ModelShape:
    try:
        return ModelShape.of(resolve_model(model))
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise UserError(f"{model!r} cannot be planned: {first}", setting="model") from error


def _on_cpu(device: str, vram: str | None) -> bool:
    """A size to fit into is that of a card, unless the CPU is asked for; the card need not be in this machine."""
    if device == "auto":
        return vram is None and not torch.cuda.is_available()
    return device == "cpu"


def _dtype(dtype: Any, *, on_cpu: bool) -> torch.dtype:
    if on_cpu or dtype != "auto":
        return resolve_dtype(dtype, torch.device("cpu"))
    return torch.bfloat16


def _changes(asked: PlannedSettings, chosen: PlannedSettings) -> str:
    graphs = " --no-cuda-graphs" if asked.cuda_graphs and not chosen.cuda_graphs else ""
    checkpointing = "--gradient-checkpointing " if chosen.checkpointing else ""
    return (
        f"--quantization {chosen.quantization} {checkpointing}"
        f"--max-batch-tokens {chosen.max_batch_tokens} --cache-mib {chosen.cache_mib}{graphs}"
    )


def _options(settings: PlanSettings, asked: PlannedSettings, plan: MemoryPlan) -> str:
    loop = settings.loop
    return (
        f"--model {settings.load.model} --lora-r {settings.lora.r} "
        + (f"--lora-dropout {settings.lora.dropout:g} " if settings.lora.dropout else "")
        + f"--tasks-per-step {loop.tasks_per_step} "
        f"--samples-per-prompt {loop.samples_per_prompt} --max-new-tokens {loop.max_new_tokens} "
        + (f"--max-staleness {loop.max_staleness} " if loop.max_staleness else "")
        + (f"--sampler-device {settings.engine.sampler_device} " if settings.engine.sampler_device else "")
        + ("--shard --sampler vllm " if settings.team.shard and settings.ranks > 1 else "")
        + _changes(asked, plan.settings)
    )
