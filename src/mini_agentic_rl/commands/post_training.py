"""`sft`, `dpo`, `kto`, `orpo`, `reward`, `merge` and `export`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from ..metrics import counted, duration, quantity
from ..post_training import (
    DPOSettings,
    ExportSettings,
    KTOSettings,
    MergeSettings,
    ORPOSettings,
    PostTrainingSettings,
    RewardModelSettings,
    SFTSettings,
)
from ..visible_text import visible_argument
from .tables import accuracy_table, show

_SHOWN = {
    "loss": "loss",
    "accuracy": "accuracy",
    "accuracy/tokens": "token accuracy",
    "reward/margin": "margin",
}
"""Metrics measured before and after the training, with their labels."""


TRAININGS: Final[Mapping[str, tuple[type[PostTrainingSettings], str, str]]] = {
    "sft": (SFTSettings, "train_sft", "Fine-tune a model on conversations: imitate the assistant's messages."),
    "dpo": (
        DPOSettings,
        "train_dpo",
        "Train a model to prefer chosen answers to rejected ones, close to the initial model (DPO).",
    ),
    "kto": (KTOSettings, "train_kto", "Train a model on single answers that are labelled good or bad (KTO)."),
    "orpo": (
        ORPOSettings,
        "train_orpo",
        "Train a model to imitate chosen answers and prefer them to rejected ones at the same time (ORPO).",
    ),
    "reward": (
        RewardModelSettings,
        "train_reward_model",
        "Train a reward model, which scores answers, on chosen and rejected answers.",
    ),
}
"""Commands that train on examples: settings, function of `post_training`, help."""


def training_command(name: str) -> Callable[[PostTrainingSettings], None]:
    """Return the command of a training, whose docstring is its help."""
    _, function, about = TRAININGS[name]

    def train(settings: PostTrainingSettings) -> None:
        from .. import post_training

        summary = getattr(post_training, function)(settings)
        show(settings, summary, partial(_show_training, resumed=settings.resume))

    train.__doc__ = about
    return train


def merge(settings: MergeSettings) -> None:
    """Merge an adapter into its base model, and check that the merged model gives the same tokens."""
    from .. import post_training

    summary = post_training.merge(settings)
    show(settings, summary, _show_written)


def export(settings: ExportSettings) -> None:
    """Export a trained adapter: merged into its base, as a plain peft adapter, or as a GGUF file."""
    from .. import post_training

    summary = post_training.export(settings)
    show(settings, summary, _show_written)


def _show_training(console: Console, summary: Mapping[str, Any], *, resumed: bool) -> None:
    table = Table("", "before", "after", title=f"{summary['method']}, on {summary['measured_on']}")
    for name, title in _SHOWN.items():
        if name in summary["after"]:
            values = (quantity(name.split("/")[0], summary[when].get(name)) for when in ("before", "after"))
            table.add_row(title, *values)
    console.print(table)
    if "pair_accuracy" in summary:
        console.print(accuracy_table([summary["pair_accuracy"]]))
    seconds = summary["seconds"]["training"]  # only of the last process
    spent = "" if resumed else f" in {duration(seconds)} of training"
    console.print(f"{counted(summary['steps'], 'step')}, {counted(summary['tokens'], 'token')}{spent}")
    folder = visible_argument(summary["output_dir"])
    lines = [f"wrote {summary['output_dir']}"]
    if summary["method"] == "reward":
        lines += [f"to score answers with it: mini-agentic-rl score-server --model {folder}"]
    else:
        lines += [
            f"to use what was trained: mini-agentic-rl chat --model {folder}",
            f"to reinforce it:         mini-agentic-rl train --model {folder} --sft-examples 0 --output-dir outputs/rl",
        ]
    for line in lines:
        console.print(line)


def _show_written(console: Console, summary: Mapping[str, Any]) -> None:
    """Print where the result is, and how the merged model differs from the unmerged one."""
    merged = summary if "check" in summary else summary.get("merged", {})
    check = merged.get("check")
    if check is not None:
        rounding = f"differ by at most {check['max_logit_difference']:.2g} through rounding to {merged['dtype']}"
        checked = f"checked: scores of a few answers {rounding}"
        if check["tokens"]:
            checked = (
                f"checked: {check['tokens_equal']} of {check['tokens']} greedy tokens the same, logits {rounding}; "
                f"the adapter changes them by up to {merged['adapter_effect']:.2g}"
            )
        console.print(checked)
    console.print(f"wrote {summary['output_dir']} ({summary['bytes'] / 1e6:,.1f} MB)")
