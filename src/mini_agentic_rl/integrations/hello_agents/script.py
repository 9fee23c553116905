"""Run a command under the name and the flags of a script in `scripts/`.

A flag may be written with `_` or `-`, and under names of the script (`--model_path` for `--model`). An unknown flag is
refused, with the nearest known one. `--help` prints the names, flags and defaults of the script, and the help page of
the command.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import typer
from typer.core import TyperOption
from typer.main import get_command

from ...commands.command_line import app
from ...commands.options import USER_ERROR
from ...config import called_here, misspelt
from ...errors import UserError
from ...visible_text import visible

Prepare = Callable[[dict[str, str]], dict[str, str]]
"""From the given options, including the script's further flags, to options that are added to the command."""


def run_script(
    command: str,
    *,
    names: Mapping[str, str] | None = None,
    defaults: Mapping[str, str] | None = None,
    further: Mapping[str, str] | None = None,
    computed: Mapping[str, str] | None = None,
    prepare: Prepare | None = None,
    arguments: Sequence[str] | None = None,
) -> NoReturn:
    """Run a command and end the process with its exit code.

    Args:
        command: its name.
        names: option names of the script → those of the command, without leading dashes and with `_`.
        defaults: values of options that are not given.
        further: further flags of the script, each with a value and a description; `prepare` turns them into options.
        computed: descriptions, for the help page, of the defaults that `prepare` computes.
        prepare: takes the given options by name, those of `further` included, with their values (a flag's is empty);
            returns options to add.
        arguments: arguments of the script; None takes the command line.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    names, defaults, further = names or {}, defaults or {}, further or {}
    if {"--help", "--help-all"} & set(words):
        typer.echo(f"usage: python {sys.argv[0]} [options of `mini-agentic-rl {command}`, with _ or -]\n")
        for name, description in further.items():
            typer.echo(f"  --{name}  {description}")
        for name, option in names.items():
            typer.echo(f"  --{name}  the same as {_dashed(option)}")
        for option, value in {**defaults, **(computed or {})}.items():
            typer.echo(f"  {_dashed(option)}  default: {value}")
        page = "--help-all" if "--help-all" in words else "--help"
        get_command(app).main([command, page], prog_name="mini-agentic-rl")
    try:
        line, values = _translated(_options(command), words, names, further)
        added = {**defaults, **(prepare({**defaults, **values}) if prepare is not None else {})}
    except UserError as error:
        sys.stderr.write(visible(f"error: {error}\n"))
        sys.exit(USER_ERROR)
    for name, value in added.items():
        if name not in values:
            line += [_dashed(name), value]
    get_command(app).main([command, *line], prog_name="mini-agentic-rl")
    sys.exit(0)


def number(options: Mapping[str, str], name: str, default: int) -> int:
    """Return an option as a whole number of 1 or more.

    Raises:
        UserError: it is not one.
    """
    text = options.get(name, str(default))
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"--{name} {text}: must be a whole number, 1 or more")
    return int(text)


def _translated(
    options: Mapping[str, bool], words: Sequence[str], names: Mapping[str, str], further: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return the arguments of the command, and the given options by name, those of `further` included; a flag without
    a value has an empty one."""
    line: list[str] = []
    values: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if not word.startswith("--") or word == "--":
            line.append(word)
            continue
        flag, equals, value = word.partition("=")
        name = _underscored(flag)
        name = names.get(name, name)
        if name not in options and name not in further:
            known = [*options, *names, *further]
            near = called_here(_underscored(flag), known) or misspelt(_underscored(flag), known)
            raise UserError(f"{flag} is unknown{f': did you mean --{near}?' if near else '; see --help'}")
        takes_value = name in further or options[name]
        if takes_value and not equals:
            given = next(rest, None)
            if given is None:
                raise UserError(f"{flag} needs a value")
            value = given
        values[name] = value
        if name not in further:
            line += [_dashed(name), value] if takes_value else [_dashed(name)]
    return line, values


def _options(command: str) -> dict[str, bool]:
    """Return the options of a command, with `_` and without leading dashes, and whether each takes a value."""
    commands: Mapping[str, Any] = get_command(app).commands  # type: ignore[attr-defined]  # it is a group
    takes_value = {"help": False}
    for parameter in commands[command].params:
        if isinstance(parameter, TyperOption):
            for option in (*parameter.opts, *parameter.secondary_opts):
                takes_value[_underscored(option)] = not parameter.is_flag
    return takes_value


def _dashed(name: str) -> str:
    return "--" + name.replace("_", "-")


def _underscored(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")
