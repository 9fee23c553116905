"""Help pages: which options `--help` shows where a command has too many, and where its own options stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperCommand

COMMAND_PANEL = "Command"
"""Last group of every page: what is no setting."""

_RUN = ("output_dir", "seed", "loggers", "resume", "overwrite", "json_output")
_TRAIN = (
    *("env", "agent", "dataset", "difficulty", "max_samples", "eval_size", "model", "device", "preset", *_RUN),
    *("sft_examples", "algorithm", "total_steps", "tasks_per_step", "samples_per_prompt"),
    *("max_new_tokens", "learning_rate"),
)
_POST_TRAINING = (
    *("model", "device", "use_lora", "lora_r", "dataset", "max_samples", "max_length"),
    *("num_epochs", "max_steps", "batch_size", "learning_rate", *_RUN),
)

SHORT_HELP: Mapping[str, Sequence[str]] = {
    "train": _TRAIN,
    "train-sql": (*_TRAIN, "database", "reward_model_url", "ci_fast", "external_store_address"),
    "sweep": ("vary", "seeds", *_TRAIN),
    "sft": (*_POST_TRAINING, "packing"),
    "dpo": (*_POST_TRAINING, "beta", "loss_type"),
    "kto": (*_POST_TRAINING, "beta"),
    "orpo": (*_POST_TRAINING, "beta"),
    "reward": _POST_TRAINING,
}
"""The settings that `--help` of a command shows; `--help-all` shows every one. Other commands show theirs at once."""


class PagedCommand(TyperCommand):
    """A command whose `--help` stands with what is no setting, and whose hidden options can be shown."""

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)
        if option is not None:
            option.rich_help_panel = COMMAND_PANEL
        return option

    def show(self) -> None:
        """Let the help page show every option."""
        for parameter in self.params:
            parameter.hidden = False  # type: ignore[attr-defined]  # all but arguments have it


def show_all(context: typer.Context, asked: bool) -> None:
    """Print the page with every option, and end the process: the callback of `--help-all`."""
    if asked:
        command: Any = context.command
        command.show()
        typer.echo(command.get_help(context))
        raise typer.Exit
