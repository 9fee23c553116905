"""Run a command under the name and the flags of a script in `scripts/`.

A flag may be written with `_` or `-`, and under names of the script (`--model_path` for `--model`). An unknown flag is
refused, with the nearest known one. `--help` prints the names, flags and defaults of the script, and the help page of
the command.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
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
        prepare: takes the given options with a value, those of `further` included, by name; returns options to add.
        arguments: arguments of the script; None takes the command line.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    if {"--help", "--help-all"} & set(given):
        typer.echo(f"usage: python {sys.argv[0]} [options of `mini-agentic-rl {command}`, with _ or -]\n")
        for name, description in (further or {}).items():
            typer.echo(f"  --{name}  {description}")
        for name, option in (names or {}).items():
            typer.echo(f"  --{name}  the same as {_dashed(option)}")
        for option, value in {**(defaults or {}), **(computed or {})}.items():
            typer.echo(f"  {_dashed(option)}  default: {value}")
        page = "--help-all" if "--help-all" in given else "--help"
        get_command(app).main([command, page], prog_name="mini-agentic-rl")
    try:
        line = _command_line(command, given, dict(names or {}), dict(defaults or {}), further or {}, prepare)
    except UserError as error:
        sys.stderr.write(visible(f"error: {error}\n"))
        sys.exit(USER_ERROR)
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


def _command_line(
    command: str,
    given: Sequence[str],
    names: Mapping[str, str],
    defaults: Mapping[str, str],
    further: Mapping[str, str],
    prepare: Prepare | None,
) -> list[str]:
    """Return the arguments that the command is called with."""
    known = _options(command)
    line: list[str] = []
    values: dict[str, str] = {}
    set_flags: set[str] = set()
    words = list(given)
    while words:
        word = words.pop(0)
        if not word.startswith("--") or word == "--":
            line.append(word)
            continue
        flag, equals, value = word.partition("=")
        name = flag[2:].replace("-", "_")
        name = names.get(name, name)
        if name not in known and name not in further:
            raise UserError(_unknown(flag, [*known, *names, *further]))
        takes_value = name in further or known[name]
        if takes_value and not equals:
            if not words:
                raise UserError(f"{flag} needs a value")
            value = words.pop(0)
        set_flags.add(name)
        if takes_value:
            values[name] = value
        if name not in further:
            line += [_dashed(name), value] if takes_value else [_dashed(name)]
    added = {name: value for name, value in defaults.items() if name not in set_flags}
    if prepare is not None:
        added |= prepare({**defaults, **values})
    for name, value in added.items():
        if name not in set_flags:
            line += [_dashed(name), value]
    return line


def _options(command: str) -> dict[str, bool]:
    """Return the options of a command, with `_` and without leading dashes, and whether each takes a value."""
    commands: Mapping[str, Any] = get_command(app).commands  # type: ignore[attr-defined]  # it is a group
    takes_value = {"help": False}
    for parameter in commands[command].params:
        if isinstance(parameter, TyperOption):
            for option in (*parameter.opts, *parameter.secondary_opts):
                takes_value[_underscored(option)] = not parameter.is_flag
    return takes_value


def _unknown(flag: str, known: Iterable[str]) -> str:
    name, names = _underscored(flag), list(known)
    near = called_here(name, names) or misspelt(name, names)
    hint = f": did you mean --{near}?" if near else "; see --help"
    return f"{flag} is unknown{hint}"


def _dashed(name: str) -> str:
    return "--" + name.replace("_", "-")


def _underscored(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")
