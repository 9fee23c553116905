"""Pages that are made from declarations: every setting with its default, and every command with its options."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, get_args

from pydantic_core import PydanticUndefined
from typer.main import get_command

from mini_agentic_rl.algorithm import APOSettings, PPOSettings
from mini_agentic_rl.cli import app
from mini_agentic_rl.config import Settings

BESIDE_COMMANDS: tuple[type[Settings], ...] = (APOSettings, PPOSettings)
"""Settings of algorithms that no command imports before it runs one."""


def settings_classes() -> list[type[Settings]]:
    """Return every class of settings of the package, by module: those of the commands, and what they build on."""
    found: set[type[Settings]] = set(BESIDE_COMMANDS)
    waiting: list[type[Settings]] = [Settings]
    while waiting:
        below = waiting.pop().__subclasses__()
        found.update(below)
        waiting += below
    own = [kind for kind in found if kind.__module__.startswith("mini_agentic_rl.")]
    return sorted(own, key=lambda kind: (kind.__module__, kind.__name__))


def settings_page() -> str:
    """Return the page of all settings, a table for each class, by the rooms that declare them."""
    lines = [
        "# Settings",
        "",
        "All settings with their defaults, by the class that declares them, generated from the code.",
        "In Python give a setting by its name (`MiniGRPO(learning_rate=1e-4)`) or in its group",
        "(`learner=LearnerSettings(…)`), on the command line as an option",
        "([all options](command-line.md)), and in a file for `--config` as a line.",
    ]
    for kind in settings_classes():
        own = [name for name in kind.model_fields if name in inspect.get_annotations(kind)]
        plain = [name for name in own if not _groups(kind.model_fields[name].annotation)]
        if not plain:
            continue
        room = kind.__module__.removeprefix("mini_agentic_rl.").partition(".")[0]
        lines += ["", f"## {kind.__name__}", "", f"{_first(kind.__doc__)} Declared in `{room}`.", ""]
        lines += ["| setting | type | default | meaning |", "|---|---|---|---|"]
        for name in plain:
            field = kind.model_fields[name]
            default = field.get_default(call_default_factory=True)
            shown = "required" if default is PydanticUndefined else f"`{default!r}`"
            lines.append(_row(f"`{name}`", f"`{_type(field.annotation)}`", shown, field.description or ""))
    return "\n".join(lines) + "\n"


def commands_page() -> str:
    """Return the page of all commands, with every option, those included that `--help` leaves to `--help-all`."""
    lines = [
        "# Command line",
        "",
        "Every command and every option, generated from the code. [Commands](../commands.md) has examples.",
        "`agl` is short for `mini-agentic-rl`. Each command has `--help` and `--debug` too.",
    ]
    for name, command in _commands("mini-agentic-rl", get_command(app)):
        lines += ["", f"## {name}", "", _first(command.help)]
        panels: dict[str, list[Any]] = defaultdict(list)
        for parameter in command.params:
            if not {"--help", "--debug", "--help-all"} & set(parameter.opts):
                panels[getattr(parameter, "rich_help_panel", None) or "Options"].append(parameter)
        for panel, parameters in panels.items():
            lines += ["", f"**{panel}**", "", "| option | value | default | meaning |", "|---|---|---|---|"]
            lines += [_option(parameter) for parameter in parameters]
    return "\n".join(lines) + "\n"


def _groups(annotation: Any) -> list[type[Settings]]:
    """Return the classes of settings that an annotation names."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return [annotation]
    return [group for part in get_args(annotation) for group in _groups(part)]


def _type(annotation: Any) -> str:
    shown = inspect.formatannotation(annotation).replace("typing.", "").replace("NoneType", "None")
    return shown.replace("pathlib.", "").replace("pathlib._local.", "")


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
        return
    for part, one in inner.items():
        if not one.hidden:
            yield from _commands(f"{name} {part}", one)


def _option(parameter: Any) -> str:
    names = " ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    if parameter.param_type_name == "argument":
        names = f"`{parameter.name.upper()}`"
    default = parameter.default
    shown = "" if default is None or callable(default) or str(default).startswith("Sentinel") else f"`{default}`"
    is_flag = getattr(parameter, "is_flag", False)
    kind = parameter.metavar or ("" if is_flag or default is None else type(default).__name__)
    return _row(names, f"`{kind}`" if kind else "", shown, getattr(parameter, "help", None) or "")


def _row(*cells: str) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    one_line = " ".join(text.split()).replace("|", "\\|")
    return one_line.replace("<", "&lt;") if "`" not in one_line else one_line


def _first(text: str | None) -> str:
    """Return the first paragraph of a docstring in one line."""
    return " ".join(inspect.cleandoc(text or "").partition("\n\n")[0].split())


__all__ = ["commands_page", "settings_page"]
