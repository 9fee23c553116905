"""`sft`, `dpo`, `kto`, `orpo`, `reward`, `merge` and `export`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

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
from .tables import accuracy_table, show

_SHOWN = {
    "loss": "loss",
    "accuracy": "accuracy",
    "accuracy/tokens": "token accuracy",
    "reward/margin": "margin",
}
"""Metrics measured before and after the training, with their labels."""


def sft(settings: SFTSettings) -> None:
    """Fine-tune a model on conversations: imitate the assistant's messages."""
    from ..post_training import train_sft

    _show_training(settings, train_sft(settings))


def dpo(settings: DPOSettings) -> None:
    """Train a model to prefer chosen answers to rejected ones, close to the initial model (DPO)."""
    from ..post_training import train_dpo

    _show_training(settings, train_dpo(settings))


def kto(settings: KTOSettings) -> None:
    """Train a model on single answers that are labelled good or bad (KTO)."""
    from ..post_training import train_kto

    _show_training(settings, train_kto(settings))


def orpo(settings: ORPOSettings) -> None:
    """Train a model to imitate chosen answers and prefer them to rejected ones at the same time (ORPO)."""
    from ..post_training import train_orpo

    _show_training(settings, train_orpo(settings))


def reward(settings: RewardModelSettings) -> None:
    """Train a reward model, which scores answers, on chosen and rejected answers."""
    from ..post_training import train_reward_model

    _show_training(settings, train_reward_model(settings))


def merge(settings: MergeSettings) -> None:
    """Merge an adapter into its base model, and check that the merged model gives the same tokens."""
    from ..post_training.export import merge

    summary = merge(settings)
    show(settings, summary, lambda console: _show_written(console, summary))


def export(settings: ExportSettings) -> None:
    """Export a trained adapter: merged into its base, as a plain peft adapter, or as a GGUF file."""
    from ..post_training.export import export

    summary = export(settings)
    show(settings, summary, lambda console: _show_written(console, summary))


def _show_training(settings: PostTrainingSettings, summary: Mapping[str, Any]) -> None:
    show(settings, summary, lambda console: _print_training(console, summary, resumed=settings.resume))


def _print_training(console: Console, summary: Mapping[str, Any], *, resumed: bool) -> None:
    console.print(_table(summary))
    if "pair_accuracy" in summary:
        console.print(accuracy_table([summary["pair_accuracy"]]))
    seconds = summary["seconds"]["training"]  # only of the last process
    spent = "" if resumed else f" in {duration(seconds)} of training"
    console.print(f"{counted(summary['steps'], 'step')}, {counted(summary['tokens'], 'token')}{spent}", highlight=False)
    for line in (f"wrote {summary['output_dir']}", *_what_next(summary)):
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def _what_next(summary: Mapping[str, Any]) -> list[str]:
    """Return the commands for the next steps, a line each."""
    folder = shlex.quote(str(summary["output_dir"]))
    if summary["method"] == "reward":
        return [f"to score answers with it: mini-agentic-rl score-server --model {folder}"]
    return [
        f"to use what was trained: mini-agentic-rl chat --model {folder}",
        f"to reinforce it:         mini-agentic-rl train --model {folder} --sft-examples 0 --output-dir outputs/rl",
    ]


def _table(summary: Mapping[str, Any]) -> Table:
    table = Table("", "before", "after", title=f"{summary['method']}, on {summary['measured_on']}")
    for name, title in _SHOWN.items():
        if name in summary["after"]:
            table.add_row(
                title, *(quantity(name.split("/")[0], summary[when].get(name)) for when in ("before", "after"))
            )
    return table


def _show_written(console: Console, summary: Mapping[str, Any]) -> None:
    merged = summary if "check" in summary else summary.get("merged", {})
    if merged.get("check") is not None:
        console.print(_checked(merged), highlight=False, soft_wrap=True)
    console.print(f"wrote {summary['output_dir']} ({summary['bytes'] / 1e6:,.1f} MB)", highlight=False, soft_wrap=True)


def _checked(merged: Mapping[str, Any]) -> str:
    """Describe how the merged model differs from the unmerged one, and the effect of the adapter for comparison."""
    check = merged["check"]
    rounding = f"differ by at most {check['max_logit_difference']:.2g} through rounding to {merged['dtype']}"
    if not check["tokens"]:
        return f"checked: scores {rounding}"
    return (
        f"checked: {check['tokens_equal']} of {check['tokens']} greedy tokens the same, logits {rounding}; "
        f"the adapter changes them by up to {merged['adapter_effect']:.2g}"
    )
