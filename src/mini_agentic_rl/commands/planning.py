"""Predict the memory and the seconds of a run, and choose settings that fit: the work of `plan` and of `--preset`."""

from __future__ import annotations

import importlib.util
import json
import logging
import re
import statistics
from pathlib import Path
from typing import Any

import torch

from ..errors import UserError
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
from .train_config import PlanSettings, TrainConfig

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

    if settings.vram is None:
        plan = plan_memory(shape, work, asked, on_cpu=on_cpu, spread=spread)
    else:
        limit = read_size(settings.vram)
        plan = fitting_plan(shape, work, asked, limit, on_cpu=on_cpu, quantizes=not on_cpu, spread=spread)
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


_NEEDED = ("tokens_per_second", "seconds/learning", "tree/tokens")


def spread_report(
    shape: ModelShape,
    work: PlannedWork,
    settings: PlannedSettings,
    spread: Spread,
    *,
    on_cpu: bool,
    rates: StepRates | None,
    max_staleness: int,
) -> dict[str, Any]:
    """Return what a plan tells besides the memory of a rank, as JSON: `replica`, `adapter_bytes` and `step`.

    Args:
        rates: those of a run; None takes those that were measured once, of which there are none for a card.
        max_staleness: versions that samplers may run ahead; above 0 sampling goes on while learning does, where it has
            a device or servers of its own.
    """
    found: dict[str, Any] = {"adapter_bytes": adapter_bytes(shape, settings.lora_r), "replica": None}
    if spread.replicas:
        server = plan_replica(shape, work, settings, spread, versions=max_staleness + 2)
        found["replica"] = {
            "peak_bytes": server.peak,
            "parts": [{"name": part.name, "bytes": part.bytes} for part in server.parts],
        }
    if rates is None and not on_cpu:
        found["step"] = None
        return found
    measured = rates or (VLLM_ON_CPU if spread.replicas else OWN_ON_CPU)
    taken = measured.of_model(shape.linear_weights + shape.other_weights)
    elsewhere = spread.replicas > 0 or settings.samples_elsewhere
    seconds = step_seconds(work, spread, taken, overlapped=max_staleness > 0 and elsewhere)
    found["step"] = {
        "seconds": seconds.total,
        "sampling_seconds": seconds.sampling,
        "learning_seconds": seconds.learning,
        "sampled_tokens_per_second": taken.sampled,
        "learned_tokens_per_second": taken.learned,
        "rates": measured.source,
    }
    return found


def rates_of_run(path: Path, shape: ModelShape) -> StepRates:
    """Return the medians of a run's steps, without the first where there are others, which warms up.

    Raises:
        UserError: the folder holds no step.
    """
    metrics = RunFolder(path).metrics_path
    try:
        lines = metrics.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"{path} holds no run: {error.strerror}", setting="rates") from None
    steps = [row for row in map(_row, lines) if all(isinstance(row.get(name), int | float) for name in _NEEDED)]
    steps = [row for row in steps[1:] or steps if row["seconds/learning"] > 0 and row["tokens_per_second"] > 0]
    if not steps:
        raise UserError(f"{path} holds no step of reinforcement learning yet", setting="rates")
    return StepRates(
        source=f"the median of {len(steps)} steps of {path}",
        parameters=shape.linear_weights + shape.other_weights,
        sampled=statistics.median(row["tokens_per_second"] for row in steps),
        learned=statistics.median(row["tree/tokens"] / row["seconds/learning"] for row in steps),
    )


def model_of_run(path: Path) -> str:
    """Return the model that a run trains.

    Raises:
        UserError: its configuration cannot be read, or names none.
    """
    try:
        model = json.loads((path / "config.json").read_text(encoding="utf-8")).get("model")
    except (OSError, ValueError, AttributeError):
        model = None
    if not isinstance(model, str):
        raise UserError(f"{path} holds no run with a model in its config.json", setting="rates")
    return model


def _row(line: str) -> dict[str, Any]:
    """Return a line of metrics; nothing for one that a killed process left half."""
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}
