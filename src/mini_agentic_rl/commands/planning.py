"""Predict the memory and the seconds of a run, and choose settings that fit: the work of `plan` and of `--preset`."""

from __future__ import annotations

import importlib.util
import logging
import re
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from ..errors import UserError, first_line
from ..files import read_json
from ..metrics import read_metrics
from ..policy import (
    CPU_CHUNK,
    MOST_LEARNT_AT_ONCE,
    OWN_ON_CPU,
    VLLM_ON_CPU,
    MemoryPlan,
    ModelShape,
    PlannedSettings,
    PlannedWork,
    Spread,
    StepRates,
    adapter_bytes,
    fitting_plan,
    kernels,
    plan_memory,
    plan_replica,
    resolve_device,
    resolve_dtype,
    resolve_model,
    step_seconds,
)
from ..trainer import RunFolder
from ..visible_text import visible_argument
from .speed_test import saved_speed
from .train_config import PlanSettings, TrainConfig

logger = logging.getLogger(__name__)

_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}
_PRESETS: Final = {"4gb": 4 * 10**9}
_CONTEXT_BYTES: Final = 450 * 10**6
"""GPU memory of a CUDA context, beside what torch allocates."""
_PROMPT_TOKENS: Final = 512
_STEP_METRICS: Final = ("tokens_per_second", "seconds/learning", "tree/tokens")
_FLOAT32_ON_CPU: Final = StepRates(
    "2 cores (AMD EPYC with AVX2), embedded model, float32, 2026-11-22: benchmarks/grpo_step.py, nothing else running",
    OWN_ON_CPU.parameters,
    103,
    121,
)
"""2,048 tokens sampled in 19.9 s, and 3,470 learned in 28.6 s."""


def plan_job(settings: PlanSettings) -> dict[str, Any]:
    """Return the plan as JSON values.

    Returns:
        `parts` and `peak_bytes` of a rank, the `options` of `train` that go with it, `adapter_bytes`, `replica` (memory
        of a server that samples, or None) and `step` (seconds and their rates; None on a GPU without `rates`).

    Raises:
        UserError: there is no such model, nothing fits into `vram`, or `rates` names no run.
    """
    if settings.load.device == "auto":  # memory to fit into is a GPU's, which need not be in this machine
        on_cpu = settings.vram is None and not torch.cuda.is_available()
    else:
        on_cpu = settings.load.device == "cpu"
    loop = settings.loop
    shape = _shape(settings.load.model)
    work = PlannedWork(loop.tasks_per_step, loop.samples_per_prompt, settings.prompt_tokens, loop.max_new_tokens)
    given = _given(settings, on_cpu=on_cpu, bitsandbytes=not on_cpu)
    shard = settings.team.shard and settings.ranks > 1
    spread = Spread(settings.ranks, shard, settings.replicas or int(shard or settings.sampling.sampler != "own"))

    if settings.vram is None:
        plan = plan_memory(shape, work, given, on_cpu=on_cpu, spread=spread)
    else:
        limit = read_size(settings.vram) - (0 if on_cpu else _CONTEXT_BYTES)
        plan = fitting_plan(shape, work, given, limit, on_cpu=on_cpu, quantizes=not on_cpu, spread=spread)
        if plan.peak > limit:
            raise UserError(
                f"{settings.vram}: the smallest settings need {plan.peak / 1e9:.2f} GB{_beside(on_cpu)}; "
                "shorten `prompt_tokens` or `max_new_tokens`, or choose a smaller `model`",
                setting="vram",
            )
    rates = None
    if settings.rates is not None:
        rates = rates_of_run(settings.rates)
    elif on_cpu:
        rates = _rates_on_cpu(plan.settings.dtype, has_servers=spread.replicas > 0)
    replica = None
    if spread.replicas:
        server = plan_replica(shape, work, plan.settings, spread, versions=loop.max_staleness + 2)
        parts = [{"name": part.name, "bytes": part.bytes} for part in server.parts]
        replica = {"peak_bytes": server.peak, "parts": parts}
    step = None
    if rates is not None:
        of_model = rates.of_model(shape.linear_weights + shape.other_weights)
        samples_elsewhere = spread.replicas > 0 or plan.settings.samples_elsewhere
        overlapped = loop.max_staleness > 0 and samples_elsewhere
        seconds = step_seconds(work, spread, of_model, overlapped=overlapped)
        step = {
            "seconds": seconds.total,
            "sampling_seconds": seconds.sampling,
            "learning_seconds": seconds.learning,
            "sampled_tokens_per_second": of_model.sampled,
            "learned_tokens_per_second": of_model.learned,
            "rates": rates.source,
        }
    return {
        "model": settings.load.model,
        "ranks": spread.ranks,
        "peak_bytes": plan.peak,
        "parts": [{"name": part.name, "phase": part.phase, "bytes": part.bytes} for part in plan.parts],
        "options": _options(settings, given, plan),
        "adapter_bytes": adapter_bytes(shape, plan.settings.lora_r),
        "replica": replica,
        "step": step,
    }


def _beside(on_cpu: bool) -> str:
    return "" if on_cpu else f" beside {_CONTEXT_BYTES / 1e9:.2f} GB of the CUDA context"


def apply_preset(settings: TrainConfig) -> TrainConfig:
    """Return the settings with those of their preset that save memory.

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
    given = _given(settings, on_cpu=on_cpu, bitsandbytes=quantizes)
    loop = settings.loop
    work = PlannedWork(loop.tasks_per_step, loop.samples_per_prompt, _PROMPT_TOKENS, 2 * loop.max_new_tokens)
    plan = fitting_plan(_shape(settings.load.model), work, given, limit, on_cpu=on_cpu, quantizes=quantizes)
    if plan.peak > limit:
        raise UserError(
            f"{settings.preset}: `model={settings.load.model}` needs {plan.peak / 1e9:.2f} GB{_beside(on_cpu)} even "
            f"with the smallest settings{'' if quantizes or on_cpu else ' (bitsandbytes would allow 4 bits)'}; "
            "choose a smaller model",
            setting="preset",
        )
    chosen = plan.settings
    changes = _memory_options(given, chosen)
    logger.info("preset %s: %s; planned peak %.2f GB", settings.preset, changes, plan.peak / 1e9)
    return settings.changed(
        quantization=chosen.quantization,
        gradient_checkpointing=chosen.checkpointing,
        max_batch_tokens=chosen.max_batch_tokens,
        cache_mib=chosen.cache_mib,
        # A CPU records no graphs, whatever the setting.
        cuda_graphs=settings.engine.cuda_graphs and (on_cpu or chosen.cuda_graphs),
    )


def read_size(text: str) -> int:
    """Return the bytes of "4GB", "3500 MB", "4GiB", "4G" or a plain number of bytes.

    Raises:
        UserError: it is none of these, or too small, as a number that was meant as gigabytes.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMG]I?)B?)?\s*", text.upper())
    if match is None:
        raise UserError(f"{text!r} is no size: write 4GB, 3500MB or 4GiB", setting="vram")
    size = int(float(match[1]) * _UNITS[match[2] or ""])
    if size < 10**6:
        raise UserError(
            f"{text} is {size:,} bytes, less than any model needs: write the unit, as in 4GB", setting="vram"
        )
    return size


def rates_of_run(path: Path) -> StepRates:
    """Return the median rates of a run's steps, without the first step, which warms up.

    Raises:
        UserError: the folder holds no configuration with a model, or no step.
    """
    try:
        model = read_json(path / "config.json").get("model")
        rows = read_metrics(RunFolder(path).metrics_path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}", setting="rates") from None
    if not isinstance(model, str):
        raise UserError(f"{path} holds no run with a model in its config.json", setting="rates")
    steps = [row for row in rows if all(isinstance(row.get(name), int | float) for name in _STEP_METRICS)]
    steps = [row for row in steps[1:] or steps if row["seconds/learning"] > 0 and row["tokens_per_second"] > 0]
    if not steps:
        raise UserError(f"{path} holds no step of reinforcement learning yet", setting="rates")
    shape = _shape(model)
    return StepRates(
        source=f"the median of {len(steps)} steps of {path}",
        parameters=shape.linear_weights + shape.other_weights,
        sampled=statistics.median(row["tokens_per_second"] for row in steps),
        learned=statistics.median(row["tree/tokens"] / row["seconds/learning"] for row in steps),
    )


def _rates_on_cpu(dtype: torch.dtype, *, has_servers: bool) -> StepRates:
    """Return the rates that `doctor` measured on this computer, else those of a 2-core machine."""
    speed = saved_speed(dtype)
    if speed is None:
        once = OWN_ON_CPU if dtype == torch.bfloat16 else _FLOAT32_ON_CPU
        rates = replace(once, source=f"{once.source} (`mini-agentic-rl doctor` measures this computer)")
    else:
        source = f"measured here by `mini-agentic-rl doctor`, {speed.dtype}"
        rates = StepRates(source, OWN_ON_CPU.parameters, speed.sampled, speed.learned)
    if has_servers:
        source = f"sampling: {VLLM_ON_CPU.source}; learning: {rates.source}"
        rates = replace(rates, source=source, sampled=VLLM_ON_CPU.sampled)
    return rates


def _given(settings: PlanSettings | TrainConfig, *, on_cpu: bool, bitsandbytes: bool) -> PlannedSettings:
    """Return the settings that decide about memory."""
    dtype = torch.bfloat16
    if on_cpu or settings.load.dtype != "auto":
        dtype = resolve_dtype(settings.load.dtype, torch.device("cpu"))
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
        compiled=on_cpu and kernels.usable(dtype, torch.device("cpu")),
    )


def _shape(model: str) -> ModelShape:
    try:
        return ModelShape.of(resolve_model(model))
    except (OSError, ValueError) as error:
        raise UserError(f"{model!r} cannot be planned: {first_line(error)}", setting="model") from error


def _options(settings: PlanSettings, given: PlannedSettings, plan: MemoryPlan) -> str:
    """Return the options of `train` for a plan."""
    loop = settings.loop
    options = [
        f"--model {visible_argument(settings.load.model)}",
        f"--lora-r {settings.lora.r}",
        f"--lora-dropout {settings.lora.dropout:g}" if settings.lora.dropout else "",
        f"--tasks-per-step {loop.tasks_per_step}",
        f"--samples-per-prompt {loop.samples_per_prompt}",
        f"--max-new-tokens {loop.max_new_tokens}",
        f"--max-staleness {loop.max_staleness}" if loop.max_staleness else "",
        "--shard --sampler vllm" if settings.team.shard and settings.ranks > 1 else "",
        _memory_options(given, plan.settings),
    ]
    return " ".join(filter(None, options))


def _memory_options(given: PlannedSettings, chosen: PlannedSettings) -> str:
    options = [
        f"--quantization {chosen.quantization}",
        "--gradient-checkpointing" if chosen.checkpointing else "",
        f"--max-batch-tokens {chosen.max_batch_tokens}",
        f"--cache-mib {chosen.cache_mib}",
        "--no-cuda-graphs" if given.cuda_graphs and not chosen.cuda_graphs else "",
    ]
    return " ".join(filter(None, options))
