"""The commands that put a trained model to use: `merge`, `export`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer
from rich.console import Console

from ..post_training.export import ExportSettings, MergeSettings
from .options import SERVE, settings_command
from .tables import show


def add_model_commands(app: typer.Typer) -> None:
    """Add the commands to the application."""

    @settings_command(app, "merge", MergeSettings, panel=SERVE)
    def merge(settings: MergeSettings) -> None:
        """Add an adapter into its base: a model of its own, checked to give the same tokens."""
        from ..post_training.export import merge

        summary = merge(settings)
        show(settings, summary, lambda console: _show(console, summary))

    @settings_command(app, "export", ExportSettings, panel=SERVE)
    def export(settings: ExportSettings) -> None:
        """Write a trained adapter for use elsewhere: merged, as an adapter in plain peft form, or as a GGUF file."""
        from ..post_training.export import export

        summary = export(settings)
        show(settings, summary, lambda console: _show(console, summary))


def _show(console: Console, summary: Mapping[str, Any]) -> None:
    merged = summary if "check" in summary else summary.get("merged", {})
    if merged.get("check") is not None:
        console.print(_checked(merged), highlight=False, soft_wrap=True)
    console.print(f"wrote {summary['output_dir']} ({summary['bytes'] / 1e6:,.1f} MB)", highlight=False, soft_wrap=True)


def _checked(merged: Mapping[str, Any]) -> str:
    """Describe the difference between the merged and the unmerged model, beside the effect of the adapter."""
    check = merged["check"]
    rounding = f"differ by at most {check['max_logit_difference']:.2g} through rounding to {merged['dtype']}"
    if not check["tokens"]:
        return f"checked: scores {rounding}"
    return (
        f"checked: {check['tokens_equal']} of {check['tokens']} greedy tokens the same, logits {rounding}; "
        f"the adapter changes them by up to {merged['adapter_effect']:.2g}"
    )
