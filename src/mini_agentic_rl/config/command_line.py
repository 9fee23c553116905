"""`lightning_cli`: create objects from the command line of a script."""

from __future__ import annotations

import argparse
import inspect
import sys
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

_NOTHING = frozenset({"none", "null", "nil", "~"})


def lightning_cli(*classes: type[Any]) -> Any:
    """Create one object of each class, with constructor arguments from the command line.

    `--trainer.n-runners 4` is the argument `n_runners` of a class `Trainer`; the others keep their defaults. Strings,
    numbers, booleans and lists of them can be given; `none` means None.

    Returns:
        The object of the one class, or a tuple of the objects of several.

    Raises:
        SystemExit: the command line is wrong, or asked for `--help`.
    """
    parser = argparse.ArgumentParser(description=f"Settings of {', '.join(kind.__name__ for kind in classes)}.")
    names: dict[str, tuple[type[Any], str]] = {}
    for kind in classes:
        try:
            hints = get_type_hints(kind.__init__)
        except NameError:  # an annotation that exists for type checkers only: every argument is a string
            hints = {}
        for name, parameter in inspect.signature(kind).parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            option = f"{kind.__name__.lower()}.{name}"
            names[option] = (kind, name)
            required = parameter.default is parameter.empty
            shown = "" if required else f"default: {parameter.default!r}".replace("%", "%%")
            parser.add_argument(
                f"--{option.replace('_', '-')}",
                dest=option,
                default=argparse.SUPPRESS,
                required=required,
                help=shown,
                **_reading(hints.get(name, str)),
            )
    given = vars(parser.parse_args(sys.argv[1:]))
    arguments: dict[type[Any], dict[str, Any]] = {kind: {} for kind in classes}
    for option, value in given.items():
        kind, name = names[option]
        arguments[kind][name] = value
    made = tuple(kind(**arguments[kind]) for kind in classes)
    return made[0] if len(made) == 1 else made


def _reading(hint: Any) -> dict[str, Any]:
    """Return the arguments of `add_argument` for a value of this type."""
    choices = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    is_optional = type(None) in choices
    items = next((get_args(choice) or (str,) for choice in choices if list in (choice, get_origin(choice))), None)
    if items is not None:
        choices, is_optional = items, False
    plain = (choice for choice in choices if choice in (bool, int, float, str) or get_origin(choice) is Literal)
    adapter = TypeAdapter[Any](next(plain, str))

    def read(text: str) -> Any:
        if is_optional and text.lower() in _NOTHING:
            return None
        try:
            return adapter.validate_python(text)
        except ValidationError as error:
            raise argparse.ArgumentTypeError(f"{error.errors()[0]['msg']}, not {text!r}") from None

    return {"type": read} if items is None else {"type": read, "nargs": "*"}
