"""What several jobs need: a look at the model, the warm start, and what to tell about the run."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from ..adapter import TraceToMessages
from ..algorithm import Evaluation, WarmStart, WarmStartSettings
from ..datasets import TaskRows
from ..errors import UserError
from ..recipes import Recipe

_PACKAGES = ("mini-agentic-rl", "torch", "transformers", "peft", "numpy")


def check_model(model: str, device: str) -> None:
    """Look whether there is such a model, before anything is written or deleted. Fetches the embedded one if needed.

    Raises:
        UserError: there is no such model or device.
    """
    from transformers import AutoConfig

    from ..policy import resolve_device, resolve_model

    resolve_device(device)
    path = resolve_model(model)
    try:
        AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise UserError(
            f"--model {model!r} cannot be loaded: {first} (give 'embedded', a local folder or a Hugging Face id)"
        ) from error


def warm_start(recipe: Recipe, tasks: TaskRows, examples: int, learning_rate: float) -> WarmStart | None:
    """Imitation of tasks done well; None where there is nothing to imitate."""
    found = recipe.demonstrations
    if found is None or examples == 0 or found.needs not in tasks[0]:
        return None
    settings = WarmStartSettings(examples=examples, learning_rate=learning_rate)
    return WarmStart(found.demonstrate, found.tools, settings)


def transcripts(evaluation: Evaluation | None, count: int) -> list[dict[str, Any]]:
    """Some conversations of a measurement, wrong ones first among equals, for the report."""
    if evaluation is None:
        return []
    found = []
    for finished in evaluation.rollouts:
        rows = TraceToMessages().adapt(finished.spans)
        if not rows:
            continue
        task = finished.rollout.input
        gold = task.get("answer") if isinstance(task, Mapping) else None
        found.append(
            {
                "title": f"{evaluation.name}: {finished.rollout.rollout_id}",
                "messages": rows[-1]["messages"],
                "reward": finished.reward,
                "note": None if gold is None else f"expected answer: {gold}",
            }
        )
    wrong = [row for row in found if not row["reward"]]
    right = [row for row in found if row["reward"]]
    half = count // 2
    return right[: count - min(half, len(wrong))] + wrong[:half]


def versions() -> dict[str, str]:
    """Versions of what computes."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
