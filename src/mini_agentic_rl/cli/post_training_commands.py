"""The commands that train on written data: `sft`, `dpo`, `kto`, `orpo`, `reward`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from ..post_training import (
    DPOSettings,
    KTOSettings,
    ORPOSettings,
    PostTrainingSettings,
    RewardModelSettings,
    SFTSettings,
)
from .options import TRAIN, settings_command
from .tables import accuracy_table

_SHOWN = ("loss", "accuracy", "accuracy/tokens", "reward/margin")


def add_post_training_commands(app: typer.Typer) -> None:
    """Add the commands to the application."""

    @settings_command(app, "sft", SFTSettings, panel=TRAIN)
    def sft(settings: SFTSettings) -> None:
        """Fine-tune a model on conversations: imitate what the assistant says in them."""
        from ..post_training import train_sft

        _show(settings, train_sft(settings))

    @settings_command(app, "dpo", DPOSettings, panel=TRAIN)
    def dpo(settings: DPOSettings) -> None:
        """Train a model to prefer chosen answers to rejected ones, near to where it started (DPO)."""
        from ..post_training import train_dpo

        _show(settings, train_dpo(settings))

    @settings_command(app, "kto", KTOSettings, panel=TRAIN)
    def kto(settings: KTOSettings) -> None:
        """Train a model on answers that are good or bad, each on its own (KTO)."""
        from ..post_training import train_kto

        _show(settings, train_kto(settings))

    @settings_command(app, "orpo", ORPOSettings, panel=TRAIN)
    def orpo(settings: ORPOSettings) -> None:
        """Train a model to imitate chosen answers and to prefer them to rejected ones, in one go (ORPO)."""
        from ..post_training import train_orpo

        _show(settings, train_orpo(settings))

    @settings_command(app, "reward", RewardModelSettings, panel=TRAIN)
    def reward(settings: RewardModelSettings) -> None:
        """Train a reward model, which scores answers, on chosen and rejected ones."""
        from ..post_training import train_reward_model

        _show(settings, train_reward_model(settings))


def _show(settings: PostTrainingSettings, summary: Mapping[str, Any]) -> None:
    if settings.json_output:
        typer.echo(json.dumps(summary, indent=2, ensure_ascii=False))
        return
    console = Console()
    console.print(_table(summary))
    if "pair_accuracy" in summary:
        console.print(accuracy_table([summary["pair_accuracy"]]))
    seconds = summary["seconds"]["training"]  # of the last process alone
    spent = "" if settings.resume else f" in {seconds:.0f} s of training"
    console.print(f"{summary['steps']} steps, {summary['tokens']:,} tokens{spent}", highlight=False)
    console.print(f"wrote {summary['output_dir']}", highlight=False, soft_wrap=True, markup=False)


def _table(summary: Mapping[str, Any]) -> Table:
    table = Table("", "before", "after", title=f"{summary['method']}, on {summary['measured_on']}")
    for name in _SHOWN:
        if name in summary["after"]:
            table.add_row(name, *(f"{summary[when].get(name, float('nan')):.4g}" for when in ("before", "after")))
    return table
