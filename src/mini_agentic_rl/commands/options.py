"""Command-line options made from settings classes, their help pages, and the exit codes of errors."""

from __future__ import annotations

import errno
import inspect
import io
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

import typer
from pydantic import ValidationError
from typer.core import TyperCommand

from ..config import COMMAS, VALUES, WITHOUT_OPTION, Setting, Settings, called_here, extra_of
from ..errors import UserError, spelled_settings
from ..logging import setup_logging
from ..metrics import shared_console
from ..processes import TERMINATED, Terminated, stops_cleanly
from ..redaction import HIDDEN, remember_secrets, without_secrets
from ..visible_text import visible
from .config_file import as_yaml, read_config

S = TypeVar("S", bound=Settings)

TRAIN, MEASURE, SERVE, DATA, STORE, INSTALLED = "Train", "Measure", "Serve and export", "Data", "Store", "Installed"
"""Groups of the commands on the help page."""
COMMAND_PANEL = "Command"
"""Last group of the options of every command: those that are no settings."""
USER_ERROR = 2
INTERRUPTED = 130


class SettingsCommand(TyperCommand):
    """A command whose options are the settings of a class, some of which `--help` may leave to `--help-all`."""

    settings_class: ClassVar[type[Settings]] = Settings

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)
        if option is not None:
            option.rich_help_panel = COMMAND_PANEL
        return option

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse an option that has another name here, or that only a file can set, with what to write instead; and a
        second file."""
        known = {option for parameter in self.params for option in (*parameter.opts, *parameter.secondary_opts)}
        settings = self.settings_class.settings()
        for word in args:
            flag = word.partition("=")[0]
            if not flag.startswith("--") or flag in known:
                continue
            name = flag.removeprefix("--").replace("-", "_")
            in_file = name if name in settings else name.removeprefix("no_")
            if in_file in settings and settings[in_file].panel == WITHOUT_OPTION:
                raise typer.BadParameter(f"there is no {flag}: give {in_file} in a file of --config", ctx=ctx)
            here = called_here(name, settings)
            if here is not None:
                option = " ".join(filter(None, (option_name(settings[here]), VALUES.get(name))))
                raise typer.BadParameter(f"there is no {flag}: here it is {option}", ctx=ctx)
        if sum(word.partition("=")[0] == "--config" for word in args) > 1:
            raise typer.BadParameter("--config is given twice: write all settings into one file", ctx=ctx)
        return super().parse_args(ctx, args)


def settings_command(
    app: typer.Typer,
    name: str,
    kind: type[S],
    *,
    log_level: str = "INFO",
    panel: str | None = None,
    has_file: bool = True,
    short_help: Sequence[str] = (),
) -> Callable[[Callable[[S], None]], None]:
    """Add a command whose options are the settings of a class, plus `--debug`, `--config` and `--print-config`.

    The decorated function gets the validated settings; their `model_fields_set` holds what was given on the command
    line or in the file. Its docstring is the help of the command.

    Args:
        kind: class of the settings.
        log_level: level from which log records go to standard error; `--debug` shows all of them.
        panel: group of the command on the help page.
        has_file: False leaves `--config` and `--print-config` out.
        short_help: names of the settings that `--help` shows, where `--help-all` shows the others; empty for all.
    """

    def decorate(run: Callable[[S], None]) -> None:
        def command(
            context: typer.Context,
            debug: bool,
            config: Path | None = None,
            print_config: bool = False,
            help_all: bool = False,  # its callback has run
            **values: Any,
        ) -> None:
            sources = {name: context.get_parameter_source(name) for name in values}
            given = {name: values[name] for name, source in sources.items() if source and source.name != "DEFAULT"}
            if isinstance(sys.stdout, io.TextIOWrapper):  # on Windows a file or pipe has few characters, as in cp1252
                sys.stdout.reconfigure(errors="backslashreplace")
            setup_logging("DEBUG" if debug else log_level, console=shared_console())

            def work() -> None:
                settings = read_settings(kind, given, config)
                remember_secrets(settings.flat())
                if not print_config:
                    run(settings)
                    return
                completed = settings.completed()
                if type(completed) is not kind:  # the settings of an agent's own command
                    known = {*kind.settings(), *kind.model_fields}
                    completed = kind(**{name: value for name, value in completed.flat().items() if name in known})
                typer.echo(as_yaml(completed), nl=False)

            with_errors(work, debug=debug, kind=kind)

        settings = [setting for setting in kind.settings().values() if setting.panel != WITHOUT_OPTION]
        parameters = [
            _parameter(kind, setting, is_hidden=bool(short_help) and setting.name not in short_help)
            for setting in settings
        ]
        if has_file:
            about = "File with settings, YAML, TOML or JSON: its values are the defaults; options win."
            parameters.append(_command_option("config", Path | None, None, about))
            about = "Print the settings as YAML, and do nothing else."
            parameters.append(_command_option("print_config", bool, False, about))
        if short_help:
            about = f"Show all {len(settings)} options, and exit."
            parameters.append(_command_option("help_all", bool, False, about, is_eager=True, callback=_show_all))
        about = "Show debug messages, and the traceback of an error."
        parameters.append(_command_option("debug", bool, False, about))
        parameters.append(inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context))
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by inspect
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        command.__doc__ = run.__doc__
        command_class = type("SettingsCommand", (SettingsCommand,), {"settings_class": kind})
        app.command(name, cls=command_class, rich_help_panel=panel)(command)

    return decorate


def with_errors(run: Callable[[], None], *, debug: bool, kind: type[Settings] = Settings) -> None:
    """Call `run`; print a `UserError` as one line on standard error.

    Args:
        kind: class of the command's settings; the message names their options.

    Raises:
        typer.Exit: code 2 after a `UserError` or for a file name that is too long, 130 after Ctrl-C, 143 after SIGTERM.
        UserError, OSError: if `debug` is set, with its traceback.
    """
    again = "; the same command with --resume continues this run" if "resume" in kind.settings() else ""
    try:
        with stops_cleanly():
            run()
    except UserError as error:
        if debug:
            raise
        message = error.spelled(lambda name: _spelling(kind, name))
        sys.stderr.write(visible(without_secrets(f"error: {' '.join(message.split())}")) + "\n")
        raise typer.Exit(USER_ERROR) from None
    except OSError as error:
        if debug or error.errno != errno.ENAMETOOLONG:
            raise
        name = visible(without_secrets(str(error.filename)))
        sys.stderr.write(f"error: this file name is too long for the file system, choose a shorter one: {name}\n")
        raise typer.Exit(USER_ERROR) from None
    except KeyboardInterrupt:
        sys.stderr.write(f"interrupted{again}\n")
        raise typer.Exit(INTERRUPTED) from None
    except Terminated:
        sys.stderr.write(f"terminated{again}\n")
        raise typer.Exit(TERMINATED) from None


def read_settings(kind: type[S], values: Mapping[str, Any], file: Path | None = None) -> S:
    """Return the settings with these values; the file's values are the defaults.

    Raises:
        UserError: a value is not allowed; the message names the option, or the file and the setting.
    """
    in_file = {} if file is None else read_config(file, kind)
    try:
        return kind(**{**in_file, **values})
    except ValidationError as error:
        raise UserError("; ".join(_complaint(kind, problem, values, file) for problem in error.errors())) from None


def option_name(setting: Setting) -> str:
    """Return the option of a setting, or the name of its argument."""
    if extra_of(setting.field).get("argument"):
        return setting.name.upper()
    return str(extra_of(setting.field).get("option", "--" + setting.name.replace("_", "-")))


def with_options(kind: type[Settings], text: str, values: Sequence[str] = ()) -> str:
    """Return a text in which names of settings in backticks, other than `values`, are replaced by the options of a
    command."""
    return spelled_settings(text, lambda name: None if name in values else _spelling(kind, name), quote="`")


def _show_all(context: typer.Context, requested: bool) -> None:
    """Print the help page with every option, and exit."""
    if requested:
        command: Any = context.command
        for parameter in command.params:
            parameter.hidden = False
        typer.echo(command.get_help(context))
        raise typer.Exit


def _spelling(kind: type[Settings], name: str) -> str | None:
    """Return the option of a setting, given by its name or by that of its field in a group; None without an option."""
    if name in ("config", "print_config"):
        return "--" + name.replace("_", "-")
    settings = kind.settings()
    setting = settings.get(name) or next((other for other in settings.values() if other.path[-1] == name), None)
    return None if setting is None or setting.panel == WITHOUT_OPTION else option_name(setting)


def _complaint(kind: type[Settings], problem: Any, values: Mapping[str, Any], file: Path | None) -> str:
    """Return a validation problem with the option, or with the file and the setting, that it is about."""
    message = UserError(str(problem["msg"]).removeprefix("Value error, ")).spelled(lambda name: _spelling(kind, name))
    path = tuple(map(str, problem["loc"]))
    setting = kind.setting_at(path)
    if setting is None and (not path or problem["type"] == "value_error"):
        return message
    in_file = file is not None and (setting is None or setting.name not in values)
    if setting is None:
        name = ".".join(path)
    elif in_file or setting.panel == WITHOUT_OPTION:
        name = setting.name
    else:
        name = option_name(setting)
    value = problem["input"] if setting is None or setting.field.repr else HIDDEN
    return f"{f'--config: {file}: ' if in_file else ''}{name} {value}: {message[:1].lower()}{message[1:]}"


def _parameter(kind: type[Settings], setting: Setting, *, is_hidden: bool) -> inspect.Parameter:
    """Return the option or argument of a setting."""
    name = setting.name
    annotation: Any = setting.field.annotation
    placeholder = _choices(annotation)
    if COMMAS in setting.field.metadata:  # the settings split and check the items
        annotation, placeholder = list[str], placeholder or f"<{get_args(annotation)[0].__name__}>"
    about = with_options(kind, setting.help, values=(placeholder or "").strip("[]").split("|"))
    if extra_of(setting.field).get("argument"):
        argument = typer.Argument(help=about, show_default=False)
        default = inspect.Parameter.empty if setting.field.is_required() else setting.default
        return _keyword(name, default, _option_type(annotation), argument)
    if setting.is_open:
        annotation = Union[annotation, None]  # noqa: UP007  # made at run time
    option = option_name(setting)
    if setting.default is True or (setting.default is None and bool in get_args(annotation)):
        option = f"{option}/--no-{option.removeprefix('--')}"
    information = typer.Option(option, help=about, metavar=placeholder, rich_help_panel=setting.panel, hidden=is_hidden)
    return _keyword(name, setting.default, _option_type(annotation), information)


def _command_option(name: str, kind: Any, default: Any, about: str, **how: Any) -> inspect.Parameter:
    """Return an option that is no setting."""
    option = typer.Option("--" + name.replace("_", "-"), help=about, rich_help_panel=COMMAND_PANEL, **how)
    return _keyword(name, default, kind, option)


def _keyword(name: str, default: Any, kind: Any, information: Any) -> inspect.Parameter:
    annotation = Annotated[kind, information]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _option_type(annotation: Any) -> Any:
    """Return the annotation in a form that typer reads. Choices become strings: the settings check them."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        inner = next(part for part in arguments if part is not type(None))
        return Union[_option_type(inner), None]  # noqa: UP007  # made at run time
    if origin is Literal:
        return str
    if origin in (list, tuple):
        return list[_option_type(arguments[0])]  # type: ignore[misc]  # made at run time
    return annotation


def _choices(annotation: Any) -> str | None:
    """Return the choices of a setting, or of the items of a list, as the placeholder of its option."""
    if get_origin(annotation) is Literal:
        return f"[{'|'.join(map(str, get_args(annotation)))}]"
    return next((shown for shown in map(_choices, get_args(annotation)) if shown), None)
