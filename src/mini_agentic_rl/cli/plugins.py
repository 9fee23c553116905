"""`plugins`: a table of what other distributions offer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import UserError
from ..jobs import PluginSettings
from ..plugins import Plugin, entries
from ..visible_text import visible_line
from .options import INSTALLED, settings_command, with_errors
from .tables import show


def add_plugins_command(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @settings_command(app, "plugins", PluginSettings, panel=INSTALLED, has_file=False)
    def plugins(settings: PluginSettings) -> None:
        """List what other distributions offer by entry points, and why one of it cannot be used."""
        from ..jobs import plugins_job

        found = plugins_job(settings)
        show(settings, found, lambda console: show_plugins(console, found))


def add_commands_of_plugins(app: typer.Typer) -> None:
    """Add the commands that the optional parts of this package and other distributions offer, each a function that
    adds itself to `app`. One that cannot be loaded is a command that says why."""
    for plugin in entries():
        if plugin.kind != "commands":
            continue
        try:
            add = plugin.load()
        except Exception as error:  # the plugin's module may fail in any way while it is imported
            _add_missing_command(app, plugin, f"{type(error).__name__}: {error}")
        else:
            add(app)


def _add_missing_command(app: typer.Typer, plugin: Plugin, why: str) -> None:
    text = f"the command {plugin.name!r} of {plugin.distribution} is not available here ({plugin.value}): {why}"

    @app.command(plugin.name, hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
    def missing() -> None:
        def refuse() -> None:
            raise UserError(text)

        with_errors(refuse, debug=False)


def show_plugins(console: Console, found: Mapping[str, Any]) -> None:
    """Print one line for each plugin."""
    if not found["plugins"]:
        console.print("no plugins are installed", highlight=False)
        return
    table = Table("kind", "name", "from", "object", "state")
    for one in found["plugins"]:
        state = Text("ready", "green") if one["error"] is None else Text(visible_line(one["error"]), "red")
        source = f"{one['distribution']} {one['version']}"
        shown = [Text(visible_line(each)) for each in (one["kind"], one["name"], source, one["value"])]
        table.add_row(*shown, state)
    console.print(table)
