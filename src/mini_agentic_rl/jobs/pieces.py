"""What several jobs need: the agent by name, its hook, its tasks, and what to tell about the machine."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module, metadata
from typing import Any, Literal

from ..adapter import TraceToMessages
from ..algorithm import Evaluation, WarmStart, WarmStartSettings
from ..datasets import ArithmeticDataset, Split, TaskRows, load_task_dataset
from ..datasets.medical import MedicalQuestions
from ..errors import UserError
from ..litagent import LitAgent
from .kits import AgentKit, Imitation

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


def load_agent(name: str) -> AgentKit:
    """`math`, `sql`, or `module:ClassName` of a LitAgent. A class of the user's is scored by what its rollouts return,
    by what they emit, and by the hooks in its attribute `hooks`.

    Raises:
        UserError: there is no such agent.
    """
    if name == "math":
        from ..agents.math_agent import MathAgent, MathRewardHook
        from ..agents.math_protocol import TOOLS, demonstration

        return AgentKit(
            MathAgent(), [MathRewardHook()], Imitation(partial(demonstration, think=False), TOOLS, "expression")
        )
    if name == "sql":
        from .sql import sql_kit

        return sql_kit()
    module_name, _, class_name = name.partition(":")
    if not class_name:
        raise UserError(f"--agent {name!r} is unknown: give 'math', 'sql', or module:ClassName of a LitAgent")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # the module beside which the command is run, as with `python -m`
    try:
        found = getattr(import_module(module_name), class_name)
        agent = found() if isinstance(found, type) else found
    except Exception as error:  # the user's module may fail in any way while it is imported
        raise UserError(f"--agent {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(agent, LitAgent):
        raise UserError(f"--agent {name!r} is a {type(agent).__name__}, not a LitAgent")
    return AgentKit(agent, list(getattr(agent, "hooks", ())))


def load_tasks(
    dataset: str, split: Split | Literal["all"], size: int | None, seed: int, difficulty: Sequence[int]
) -> TaskRows:
    """The tasks of a split.

    Raises:
        UserError: no such data set, or its extra is not installed.
    """
    if dataset in ("arithmetic", "medical") and split != "all":
        if not difficulty or not set(difficulty) <= {1, 2, 3, 4}:
            raise UserError(f"--difficulty {list(difficulty)}: the levels are 1, 2, 3 and 4")
        if dataset == "medical":
            return MedicalQuestions(split, 2000 if size is None else size, seed, difficulty=tuple(difficulty))
        return ArithmeticDataset(split, 10_000 if size is None else size, seed, difficulty=tuple(difficulty))
    try:
        return load_task_dataset(dataset, split, size, seed)
    except ImportError as error:
        raise UserError(f"--dataset {dataset}: {error}") from error


def warm_start(kit: AgentKit, tasks: TaskRows, examples: int, learning_rate: float) -> WarmStart | None:
    """Imitation of tasks done well; None where there is nothing to imitate."""
    found = kit.imitation
    if found is None or examples == 0 or found.needs not in tasks[0]:
        return None
    settings = WarmStartSettings(examples=examples, learning_rate=learning_rate)
    return WarmStart(found.demonstration, found.tools, settings)


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
