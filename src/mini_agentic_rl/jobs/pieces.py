"""The agent by name, its hook, and its tasks."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Literal

from ..datasets import ArithmeticDataset, Split, TaskRows, load_task_dataset
from ..datasets.medical import MedicalQuestions
from ..errors import UserError
from ..litagent import LitAgent
from .kits import AgentKit, Imitation

_PACKAGES = ("mini-agentic-rl", "torch", "transformers", "peft", "numpy")


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
