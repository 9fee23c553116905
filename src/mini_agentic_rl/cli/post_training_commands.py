"""The commands that train on written data: `sft`, `dpo`, `kto`, `orpo`, `reward`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from ..metrics import counted, duration, quantity
from ..post_training import (
    DPOSettings,
    KTOSettings,
    ORPOSettings,
    PostTrainingSettings,
    RewardModelSettings,
    SFTSettings,
)
from .options import TRAIN, settings_command
from .tables import accuracy_table, show

_SHOWN = {
    "loss": "loss",
    "accuracy": "accuracy",
    "accuracy/tokens": "token accuracy",
    "reward/margin": "margin",
}
"""Metrics that are measured before and after, with the words for them that the lines of the training have."""


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
    show(settings, summary, lambda console: _tell(console, summary, resumed=settings.resume))


def _tell(console: Console, summary: Mapping[str, Any], *, resumed: bool) -> None:
    console.print(_table(summary))
    if "pair_accuracy" in summary:
        console.print(accuracy_table([summary["pair_accuracy"]]))
    seconds = summary["seconds"]["training"]  # of the last process alone
    spent = "" if resumed else f" in {duration(seconds)} of training"
    console.print(f"{counted(summary['steps'], 'step')}, {counted(summary['tokens'], 'token')}{spent}", highlight=False)
    for line in (f"wrote {summary['output_dir']}", *_what_next(summary)):
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def _what_next(summary: Mapping[str, Any]) -> list[str]:
    """Return the commands that go on with what was trained, a line each."""
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
