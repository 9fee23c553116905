"""`plan` for a training that is spread out: the memory of a rank and of a server, and the seconds of a step."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..policy import (
    OWN_ON_CPU,
    VLLM_ON_CPU,
    ModelShape,
    PlannedSettings,
    PlannedWork,
    Spread,
    StepRates,
    adapter_bytes,
    plan_replica,
    step_seconds,
)
from ..trainer import RunFolder

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
