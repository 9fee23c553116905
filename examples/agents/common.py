"""What the examples of this folder share: their problems, their options, and how long they train.

The agents themselves are in the examples, written as their SDK's own documentation writes them.
"""

from __future__ import annotations

import argparse
from typing import Any

from mini_agentic_rl import Trainer
from mini_agentic_rl.algorithm import WarmStart, WarmStartSettings
from mini_agentic_rl.datasets import ArithmeticDataset, load_task_dataset
from mini_agentic_rl.policy import LearnerSettings
from mini_agentic_rl.recipes.math import SYSTEM_PROMPT, demonstration
from mini_agentic_rl.tools import CALCULATOR_TOOL
from mini_agentic_rl.types import Dataset

INSTRUCTIONS = SYSTEM_PROMPT
"""Think, call the tool `calculator` with one expression, then reply "Answer: N"."""

MAX_TURNS = 4
"""Most model calls of one rollout."""


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that every example takes; `description` is its module's docstring."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="embedded", help="embedded, a folder, or a Hugging Face id")
    options.add_argument("--output-dir", default=None, help="folder for checkpoints, rollouts and the adapter")
    options.add_argument("--steps", type=int, default=15, help="reinforcement-learning steps")
    options.add_argument("--tasks-per-step", type=int, default=8, help="problems drawn in each step")
    options.add_argument("--samples-per-prompt", type=int, default=8, help="rollouts of each, compared with each other")
    options.add_argument("--max-new-tokens", type=int, default=64, help="most tokens of an answer of the model")
    options.add_argument("--dataset", default="arithmetic", help="arithmetic, gsm_symbolic, gsm8k, or a JSONL file")
    options.add_argument("--eval-size", type=int, default=100, help="held-out problems, measured before and after")
    options.add_argument("--sft-examples", type=int, default=32, help="conversations to imitate first; 0 for none")
    options.add_argument("--concurrency", type=int, default=64, help="rollouts that run at once")
    return options


def training(options: argparse.Namespace) -> dict[str, Any]:
    """Settings of `MiniGRPO`."""
    imitation = WarmStart(
        lambda row: demonstration(row, think=False),
        [CALCULATOR_TOOL],
        WarmStartSettings(examples=options.sft_examples),
    )
    return {
        "total_steps": options.steps,
        "tasks_per_step": options.tasks_per_step,
        "samples_per_prompt": options.samples_per_prompt,
        "max_new_tokens": options.max_new_tokens,
        "eval_size": options.eval_size,
        "warm_start": imitation if options.sft_examples else None,
        "learner": LearnerSettings(learning_rate=5e-4),
    }


def running(options: argparse.Namespace) -> dict[str, Any]:
    """Settings of `Trainer`."""
    return {"n_runners": options.concurrency, "output_dir": options.output_dir}


def problems(options: argparse.Namespace, split: str) -> Dataset[Any]:
    """Word problems with a `question` and an `answer`."""
    if options.dataset == "arithmetic":
        return ArithmeticDataset(split, 10_000 if split == "train" else options.eval_size, difficulty=(1, 2))
    return load_task_dataset(options.dataset, split)


def report(trainer: Trainer) -> None:
    """Print how many held-out answers were right, before and after."""
    for row in trainer.algorithm.summary["accuracy"]:
        print(f"{row['name']:>10}: {row['correct']} of {row['count']}")
