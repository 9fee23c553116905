"""Commands from settings: every field of a `Settings` class becomes an option, so that nothing is written twice.

The option's name is the field's, its help the field's docstring, its type and default the field's; a field marked
"argument" is given by its place. Bounds are checked by the settings class, and its complaint is told in terms of the
option. What a command may raise is turned here, in one place, into what a person sees: a `UserError` is one line and
exit code 2, Ctrl-C is exit code 130.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from ..config import Settings
from ..errors import UserError
from ..logging import setup_logging
from ..metrics import shared_console

S = TypeVar("S", bound=Settings)

USER_ERROR = 2
INTERRUPTED = 130


def settings_command(
    app: typer.Typer, name: str, settings_class: type[S], *, log_level: str = "INFO"
) -> Callable[[Callable[[S], None]], None]:
    """Add a command whose options are the fields of `settings_class`, plus `--debug`.

    The decorated function gets the checked settings, of which `model_fields_set` are those that the person gave; its
    docstring is the help of the command. Log records of at least
    `log_level` (with `--debug`: all) go to standard error.

    Raises:
        TypeError: a field has a type that no option can have, or no default.
    """

    def decorate(run: Callable[[S], None]) -> None:
        def command(context: typer.Context, debug: bool, **values: Any) -> None:
            given = {name: value for name, value in values.items() if _is_given(context, name)}
            setup_logging("DEBUG" if debug else log_level, console=shared_console())
            with_errors(lambda: run(read_settings(settings_class, given)), debug=debug, settings_class=settings_class)

        parameters = [_parameter(field_name, field) for field_name, field in settings_class.model_fields.items()]
        parameters += [
            _debug_parameter(),
            inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        ]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by inspect
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        command.__doc__ = run.__doc__
        app.command(name)(command)

    return decorate


def with_errors(run: Callable[[], None], *, debug: bool, settings_class: type[Settings] = Settings) -> None:
    """Call `run`; tell a `UserError` in one line on standard error.

    Args:
        settings_class: the settings of the command, whose options stand for their fields in the message.

    Raises:
        typer.Exit: code 2 after a `UserError`, 130 after Ctrl-C.
        UserError: as it came, with its traceback, if `debug` is set.
    """
    try:
        run()
    except UserError as error:
        if debug:
            raise
        message = error.spelled(lambda name: _spelling(settings_class, name))
        sys.stderr.write(f"error: {' '.join(message.split())}\n")
        raise typer.Exit(USER_ERROR) from None
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        raise typer.Exit(INTERRUPTED) from None


def read_settings(settings_class: type[S], values: dict[str, Any]) -> S:
    """The settings with these values.

    Raises:
        UserError: a value breaks a rule of its field; the message names the option.
    """
    try:
        return settings_class(**values)
    except ValidationError as error:
        raise UserError("; ".join(_complaint(settings_class, problem) for problem in error.errors())) from None


def option_name(field_name: str, field: FieldInfo) -> str:
    """The option of a field: `--field-name`, or what its "option" says; the name of an argument."""
    if _is_argument(field):
        return field_name.upper()
    return str(_extra(field).get("option", "--" + field_name.replace("_", "-")))


def _spelling(settings_class: type[Settings], name: str) -> str | None:
    field = settings_class.model_fields.get(name)
    return None if field is None else option_name(name, field)


def _complaint(settings_class: type[Settings], problem: Any) -> str:
    path = [str(part) for part in problem["loc"]]
    message = str(problem["msg"]).removeprefix("Value error, ")
    if not path:
        return message
    field = settings_class.model_fields.get(path[0])
    name = path[0] if field is None else option_name(path[0], field)
    return f"{name} {problem['input']}: {message[:1].lower()}{message[1:]}"


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    if _is_argument(field):
        return _argument(name, field)
    if field.is_required():
        raise TypeError(f"setting {name!r} needs a default to become an option")
    default = field.get_default(call_default_factory=True)
    option = option_name(name, field)
    refusable = default is True or (default is None and bool in get_args(field.annotation))
    declaration = f"{option}/--no-{option.removeprefix('--')}" if refusable else option
    information = typer.Option(
        declaration,
        help=" ".join((field.description or "").split()),
        metavar=_choices(field.annotation),
        rich_help_panel=_extra(field).get("panel"),
    )
    annotation = Annotated[_option_type(name, field.annotation), information]  # type: ignore[valid-type]  # built here
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _argument(name: str, field: FieldInfo) -> inspect.Parameter:
    information = typer.Argument(help=" ".join((field.description or "").split()), show_default=False)
    annotation = Annotated[_option_type(name, field.annotation), information]  # type: ignore[valid-type]  # built here
    default = inspect.Parameter.empty if field.is_required() else field.get_default(call_default_factory=True)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _is_argument(field: FieldInfo) -> bool:
    return bool(_extra(field).get("argument"))


def _debug_parameter() -> inspect.Parameter:
    information = typer.Option("--debug", help="Show debug messages, and the traceback of an error.")
    return inspect.Parameter(
        "debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, information]
    )


def _option_type(name: str, annotation: Any) -> Any:
    """The annotation in a form that typer reads. Choices become strings: the settings check them."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        parts = [part for part in get_args(annotation) if part is not type(None)]
        if len(parts) != 1:
            raise TypeError(f"setting {name!r}: an option cannot have the type {annotation}")
        return Union[_option_type(name, parts[0]), None]  # noqa: UP007  # made at run time
    if origin is Literal:
        return str
    if origin is list or (origin is tuple and get_args(annotation)[1:] == (Ellipsis,)):
        return list[_option_type(name, get_args(annotation)[0])]  # type: ignore[misc]  # made at run time
    if origin is not None or annotation is dict:
        raise TypeError(f"setting {name!r}: an option cannot have the type {annotation}")
    return annotation


def _choices(annotation: Any) -> str | None:
    """The choices of a field, or of the items of a list, as the placeholder of its option."""
    if get_origin(annotation) is Literal:
        return f"[{'|'.join(map(str, get_args(annotation)))}]"
    return next((shown for shown in map(_choices, get_args(annotation)) if shown), None)


def _extra(field: FieldInfo) -> dict[str, Any]:
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
