"""The commands. Each reads its settings and hands them to a job; heavy imports happen inside, so `--help` is quick."""

from __future__ import annotations

import platform
from importlib import metadata

import typer

from .. import __version__
from ..jobs import (
    ChatSettings,
    CompareSettings,
    EvalSettings,
    ParitySettings,
    PlanSettings,
    ServeSettings,
)
from .comparisons import show_comparison
from .data_commands import add_data_commands
from .doctor import add_doctor_command
from .model_commands import add_model_commands
from .new_project import add_new_command
from .options import INSTALLED, MEASURE, SERVE, settings_command, with_errors
from .plugins import add_commands_of_plugins, add_plugins_command
from .post_training_commands import add_post_training_commands
from .store_commands import add_store_commands
from .tables import show, show_parity, show_plan, show_result
from .training import add_training_commands

app = typer.Typer(
    help="Train the LLM agent you already have, on the computer you already have, by reinforcement learning.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
models_app = typer.Typer(help="The models kept on this computer.", no_args_is_help=True)


add_training_commands(app)
add_new_command(app)
add_post_training_commands(app)


@settings_command(app, "eval", EvalSettings, panel=MEASURE)
def evaluate(settings: EvalSettings) -> None:
    """Measure a model or an adapter on held-out problems. Never trains."""
    from ..jobs import eval_job

    summary = eval_job(settings)
    written = [settings.output] if settings.output else []
    show(settings, summary, lambda console: show_result(console, summary, written=written))


@settings_command(app, "compare", CompareSettings, panel=MEASURE, has_file=False)
def compare(settings: CompareSettings) -> None:
    """Compare runs, or outputs of `eval`, on the problems that they share: each with the first, by a paired test."""
    from ..jobs import compare_job

    found = compare_job(settings)
    show(settings, found, lambda console: show_comparison(console, found))


@settings_command(app, "plan", PlanSettings, panel=MEASURE)
def plan(settings: PlanSettings) -> None:
    """Predict what a training run holds in memory, part by part, and which settings fit; nothing is loaded."""
    from ..jobs import plan_job

    found = plan_job(settings)
    show(settings, found, lambda console: show_plan(console, found))


@settings_command(app, "parity", ParitySettings, panel=MEASURE)
def parity(settings: ParitySettings) -> None:
    """Compare servers that are to sample (vLLM, SGLang) with the learner, token by token."""
    from ..jobs import parity_job

    found = parity_job(settings)
    show(settings, found, lambda console: show_parity(console, found))


@settings_command(app, "serve", ServeSettings, panel=SERVE)
def serve(settings: ServeSettings) -> None:
    """Serve a model or an adapter behind an OpenAI-compatible endpoint until Ctrl-C."""
    from ..jobs import serve_job

    serve_job(settings)


@settings_command(app, "chat", ChatSettings, log_level="WARNING", panel=SERVE)
def chat(settings: ChatSettings) -> None:
    """Talk to a model or an adapter, with the math agent's tools."""
    from .chat import chat as run_chat

    run_chat(settings)


add_doctor_command(app)
add_model_commands(app)
add_data_commands(app)
add_store_commands(app)
add_commands_of_plugins(app)
add_plugins_command(app)
app.add_typer(models_app, name="models", rich_help_panel=INSTALLED)


@models_app.command("pull")
def models_pull(
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    """Fetch and convert the embedded model, unless that was done before; print its folder."""

    def run() -> None:
        from ..policy import pull_embedded

        typer.echo(pull_embedded(progress=lambda line: typer.echo(line, err=True)))

    with_errors(run, debug=debug)


@models_app.command("list")
def models_list() -> None:
    """Say which models are here."""
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
