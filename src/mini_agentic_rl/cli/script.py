"""The doors under `scripts/`: a command under the name and the flags that its users are used to type.

A flag may be written with `_` or `-`, and with names of its own (`--model_path` for `--model`). One that the command
does not know is refused, with the nearest one that it does.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from typer.core import TyperOption
from typer.main import get_command

from ..errors import UserError
from .app import app
from .options import USER_ERROR

Prepare = Callable[[dict[str, str]], dict[str, str]]
"""From the flags that a script has for itself, and the options given so far, to the options that the command gets."""


def run_script(
    command: str,
    *,
    names: Mapping[str, str] | None = None,
    defaults: Mapping[str, str] | None = None,
    own: Sequence[str] = (),
    prepare: Prepare | None = None,
    arguments: Sequence[str] | None = None,
) -> NoReturn:
    """Run a command and end the process with its exit code.

    Args:
        command: its name.
        names: what the script calls an option → the option, both without the dashes before it and with `_` inside.
        defaults: values of options that are not given.
        own: flags with a value that the command does not have; `prepare` makes options out of them.
        prepare: gets the options that have one value, `own` ones among them, by name, and returns what to add.
        arguments: what was typed; None takes the command line.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        line = _command_line(command, given, dict(names or {}), dict(defaults or {}), own, prepare)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(USER_ERROR)
    if "--help" in line:
        sys.stdout.write(_about_names(names or {}, own))
    get_command(app).main([command, *line], prog_name="mini-agentic-rl")
    sys.exit(0)


def number(options: Mapping[str, str], name: str, default: int) -> int:
    """An option that is a whole number, 1 or more.

    Raises:
        UserError: it is none.
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
    own: Sequence[str],
    prepare: Prepare | None,
) -> list[str]:
    """Return the arguments that the command is called with.

    Raises:
        UserError: a flag that nobody knows, or one of the script's own without a value.
    """
    known = _options(command)
    line: list[str] = []
    values: dict[str, str] = {}
    said: set[str] = set()
    words = list(given)
    while words:
        word = words.pop(0)
        if not word.startswith("--") or word == "--":
            line.append(word)
            continue
        flag, equals, value = word.partition("=")
        name = flag[2:].replace("-", "_")
        name = names.get(name, name)
        if name not in known and name not in own:
            raise UserError(_unknown(flag, [*known, *names, *own]))
        takes_value = name in own or known[name]
        if takes_value and not equals:
            if not words:
                raise UserError(f"{flag} needs a value")
            value = words.pop(0)
        said.add(name)
        if takes_value:
            values[name] = value
        if name not in own:
            line += [_dashed(name), value] if takes_value else [_dashed(name)]
    added = {name: value for name, value in defaults.items() if name not in said}
    if prepare is not None:
        added |= prepare({**defaults, **values})
    for name, value in added.items():
        if name not in said:
            line += [_dashed(name), value]
    return line


def _options(command: str) -> dict[str, bool]:
    """The options of a command, with `_` and without the dashes before them, and whether each takes a value."""
    commands: Mapping[str, Any] = get_command(app).commands  # type: ignore[attr-defined]  # it is a group
    found = {"help": False}
    for parameter in commands[command].params:
        if isinstance(parameter, TyperOption):
            for option in (*parameter.opts, *parameter.secondary_opts):
                found[option.removeprefix("--").replace("-", "_")] = not parameter.is_flag
    return found


def _unknown(flag: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(flag[2:].replace("-", "_"), list(known), n=1, cutoff=0.5)
    hint = f": did you mean --{near[0]}?" if near else "; --help shows those there are"
    return f"{flag} is unknown{hint}"


def _dashed(name: str) -> str:
    return "--" + name.replace("_", "-")


def _about_names(names: Mapping[str, str], own: Sequence[str]) -> str:
    lines = ["Options may be written with _ or -."]
    lines += [f"  --{name}  is  {_dashed(option)}" for name, option in names.items()]
    lines += [f"  --{name}  belongs to this script: see its first lines" for name in own]
    return "\n".join(lines) + "\n"
