"""The command-line application `mini-agentic-rl`: the table of its commands. Importing this module imports no torch."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib import metadata
from typing import Any, ClassVar, Final, get_args

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import __version__
from ..config import JsonSettings
from ..metrics import LOGGERS
from ..plugins import Plugin, entries, installed_plugins, own_names
from ..post_training import ExportSettings, MergeSettings
from ..samplers import SamplerSettings
from ..visible_text import visible_line
from .chat import ChatSettings, chat
from .compare import CompareSettings, compare
from .data import ConvertSettings, DatasetSettings, convert_dpo, dataset
from .doctor import DoctorSettings, doctor
from .evaluate import EVAL_SHORT_HELP, EvalSettings, evaluate
from .new_project import NewSettings, new
from .options import DATA, INSTALLED, MEASURE, SERVE, STORE, TRAIN, USER_ERROR, settings_command, with_errors
from .plan import plan
from .post_training import TRAININGS, export, merge, training_command
from .serve import SERVE_SHORT_HELP, ServeSettings, serve
from .store_commands import ImportSettings, StoreSettings, import_records, rollouts_app, show_workers, spans_app
from .store_server import ServeStoreSettings, serve_store
from .tables import show
from .train import train
from .train_config import TRAIN_SHORT_HELP, PlanSettings, TrainConfig

_POST_TRAINING: Final[Sequence[str]] = (
    *("model", "device", "use_lora", "lora_r", "dataset", "max_samples", "max_length", "num_epochs", "max_steps"),
    *("batch_size", "learning_rate", "output_dir", "seed", "loggers", "resume", "overwrite", "json_output"),
)
"""Settings that `--help` shows of every command that trains on examples."""


class PluginSettings(JsonSettings):
    """The settings of `plugins`."""

    helps: ClassVar[Mapping[str, str]] = {"json_output": "Print the plugins as JSON."}


def plugins(settings: PluginSettings) -> None:
    """List the plugins of other installed packages, and why one of them cannot be used."""
    all_entries = entries()
    result = {"plugins": [asdict(_tried(plugin, all_entries)) for plugin in installed_plugins()]}
    show(settings, result, _show_plugins)


app = typer.Typer(
    help="Train the LLM agent you already have, on the computer you already have, by reinforcement learning.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
models_app = typer.Typer(help="The models kept on this computer.", no_args_is_help=True)

settings_command(app, "train", TrainConfig, panel=TRAIN, short_help=TRAIN_SHORT_HELP)(train)
settings_command(app, "new", NewSettings, panel=TRAIN, has_file=False)(new)
for name, (kind, *_) in TRAININGS.items():
    shown = (*_POST_TRAINING, *(option for option in ("beta", "loss_type") if option in kind.model_fields))
    settings_command(app, name, kind, panel=TRAIN, short_help=shown)(training_command(name))
settings_command(app, "eval", EvalSettings, panel=MEASURE, short_help=EVAL_SHORT_HELP)(evaluate)
settings_command(app, "compare", CompareSettings, panel=MEASURE, has_file=False)(compare)
settings_command(app, "plan", PlanSettings, panel=MEASURE)(plan)
settings_command(app, "doctor", DoctorSettings, log_level="WARNING", panel=MEASURE, has_file=False)(doctor)
settings_command(app, "serve", ServeSettings, panel=SERVE, short_help=SERVE_SHORT_HELP)(serve)
settings_command(app, "chat", ChatSettings, log_level="WARNING", panel=SERVE)(chat)
settings_command(app, "merge", MergeSettings, panel=SERVE)(merge)
settings_command(app, "export", ExportSettings, panel=SERVE)(export)
settings_command(app, "dataset", DatasetSettings, panel=DATA)(dataset)
settings_command(app, "convert-dpo", ConvertSettings, panel=DATA)(convert_dpo)
settings_command(app, "store", ServeStoreSettings, log_level="WARNING", panel=STORE)(serve_store)
app.add_typer(rollouts_app, name="rollouts", no_args_is_help=True, rich_help_panel=STORE)
app.add_typer(spans_app, name="spans", no_args_is_help=True, rich_help_panel=STORE)
settings_command(app, "import", ImportSettings, log_level="WARNING", panel=STORE, has_file=False)(import_records)
settings_command(app, "workers", StoreSettings, log_level="WARNING", panel=STORE, has_file=False)(show_workers)


def add_commands_of_plugins(app: typer.Typer) -> None:
    """Add the commands of the optional parts of this package and of other packages: each is a function that adds a
    command to `app`. One that cannot be loaded becomes a hidden command that says why."""
    for plugin in entries():
        if plugin.kind != "commands":
            continue
        try:
            add = plugin.load()
        except Exception as error:  # importing the module of a plugin may raise anything
            _add_missing_command(app, plugin, f"{type(error).__name__}: {error}")
        else:
            add(app)


def _add_missing_command(app: typer.Typer, plugin: Plugin, why: str) -> None:
    text = f"the command {plugin.name!r} of {plugin.distribution} is not available here ({plugin.value}): {why}"

    @app.command(plugin.name, hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
    def missing() -> None:
        typer.echo(visible_line(f"error: {' '.join(text.split())}"), err=True)
        raise typer.Exit(USER_ERROR)


add_commands_of_plugins(app)
settings_command(app, "plugins", PluginSettings, panel=INSTALLED, has_file=False)(plugins)
app.add_typer(models_app, name="models", rich_help_panel=INSTALLED)


def _tried(plugin: Plugin, all_entries: Iterable[Plugin]) -> Plugin:
    """Return the plugin with its error, if it has one."""
    if plugin.error is not None:
        return plugin
    if plugin.name in _built_in(plugin.kind):
        return replace(plugin, error="this name is built in, and the built-in object is used")
    others = [other.distribution for other in all_entries if (other.kind, other.name) == (plugin.kind, plugin.name)]
    if len(others) > 1:
        return replace(plugin, error=f"offered by {' and '.join(others)}: uninstall one of them")
    try:
        plugin.load()
    except Exception as error:  # importing the module of a plugin may raise anything
        return replace(plugin, error=f"{type(error).__name__}: {error}")
    return plugin


def _built_in(kind: str) -> Iterable[str]:
    """Return the names of a kind that this package defines itself; no plugin replaces them."""
    from ..algorithm import LOSSES, PRESETS
    from ..rewards import NAMES as REWARDS

    recipes = own_names("recipes")
    names: Mapping[str, Iterable[str]] = {
        **dict.fromkeys(("agents", "environments", "datasets"), recipes),
        "rewards": REWARDS,
        "losses": {*LOSSES, *PRESETS},
        "samplers": get_args(SamplerSettings.model_fields["sampler"].annotation),
        "loggers": LOGGERS,
    }
    return names.get(kind, ())


def _show_plugins(console: Console, result: Mapping[str, Any]) -> None:
    if not result["plugins"]:
        console.print("no plugins are installed")
        return
    table = Table("kind", "name", "from", "object", "state")
    for plugin in result["plugins"]:
        state = Text("ready", "green") if plugin["error"] is None else Text(visible_line(plugin["error"]), "red")
        source = f"{plugin['distribution']} {plugin['version']}"
        table.add_row(*map(visible_line, (plugin["kind"], plugin["name"], source, plugin["value"])), state)
    console.print(table)


@models_app.command("pull")
def models_pull(
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    """Download and convert the embedded model if needed, and print its folder."""

    def run() -> None:
        from ..policy import pull_embedded

        typer.echo(pull_embedded(progress=lambda line: typer.echo(line, err=True)))

    with_errors(run, debug=debug)


@models_app.command("list")
def models_list() -> None:
    """List the models kept on this computer."""
    from ..policy import embedded_is_pulled, embedded_path

    state = f"in {embedded_path()}" if embedded_is_pulled() else "not here yet: mini-agentic-rl models pull"
    typer.echo(f"embedded  SmolLM2-135M-Instruct  {state}")


@app.command(rich_help_panel=INSTALLED)
def version() -> None:
    """Print the versions of the package and of what it computes with."""
    rows = {"mini-agentic-rl": __version__, "python": platform.python_version()}
    for package in ("torch", "transformers", "peft"):
        try:
            rows[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            rows[package] = "not installed"
    for name, number in rows.items():
        typer.echo(f"{name} {number}")
