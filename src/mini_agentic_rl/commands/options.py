"""Command-line options made from settings classes, their help pages, and the exit codes of errors."""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import typer
from pydantic import ValidationError
from typer.core import TyperCommand

from ..config import COMMAS, VALUES, WITHOUT_OPTION, Setting, Settings, called_here, extra_of
from ..errors import UserError
from ..logging import setup_logging
from ..metrics import shared_console
from ..processes import TERMINATED, Terminated, stops_cleanly
from ..redaction import remember_secrets, without_secrets
from ..visible_text import visible
from .config_file import as_yaml, read_config

COMMAND_PANEL = "Command"
"""Last group of every page: what is no setting."""

_RUN = ("output_dir", "seed", "loggers", "resume", "overwrite", "json_output")
_TRAIN = (
    *("env", "agent", "dataset", "difficulty", "max_samples", "eval_size", "model", "device", "preset", *_RUN),
    *("sft_examples", "algorithm", "total_steps", "tasks_per_step", "samples_per_prompt"),
    *("max_new_tokens", "learning_rate"),
)
_POST_TRAINING = (
    *("model", "device", "use_lora", "lora_r", "dataset", "max_samples", "max_length"),
    *("num_epochs", "max_steps", "batch_size", "learning_rate", *_RUN),
)

SHORT_HELP: Mapping[str, Sequence[str]] = {
    "train": _TRAIN,
    "train-sql": (*_TRAIN, "database", "reward_model_url", "ci_fast"),
    "eval": (
        *("model", "adapter", "device", "env", "agent", "dataset", "difficulty", "split", "size", "agent_command"),
        *("samples", "temperature", "max_new_tokens", "n_runners", "seed", "output", "json_output"),
    ),
    "serve": (
        *("model", "adapter", "dtype", "device", "quantization", "served_model_name", "tool_format"),
        *("learn_from_use", "host", "port", "api_key", "api_key_file", "drain_seconds", "cache_mib"),
        *("max_requests_per_minute", "max_concurrent_requests"),
    ),
    "sweep": ("vary", "seeds", *_TRAIN),
    "sft": (*_POST_TRAINING, "packing"),
    "dpo": (*_POST_TRAINING, "beta", "loss_type"),
    "kto": (*_POST_TRAINING, "beta"),
    "orpo": (*_POST_TRAINING, "beta"),
    "reward": _POST_TRAINING,
}
"""The settings that `--help` of a command shows; `--help-all` shows every one. Other commands show theirs at once."""


class PagedCommand(TyperCommand):
    """A command whose `--help` stands with what is no setting, and whose hidden options can be shown."""

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)
        if option is not None:
            option.rich_help_panel = COMMAND_PANEL
        return option

    def show(self) -> None:
        """Let the help page show every option."""
        for parameter in self.params:
            parameter.hidden = False  # type: ignore[attr-defined]  # all but arguments have it


def show_all(context: typer.Context, asked: bool) -> None:
    """Print the page with every option, and end the process: the callback of `--help-all`."""
    if asked:
        command: Any = context.command
        command.show()
        typer.echo(command.get_help(context))
        raise typer.Exit


S = TypeVar("S", bound=Settings)

TRAIN, MEASURE, SERVE, DATA, STORE, INSTALLED = "Train", "Measure", "Serve and export", "Data", "Store", "Installed"
"""Groups of the commands on the help page."""

USER_ERROR = 2
INTERRUPTED = 130

_QUOTED = re.compile(r"`([a-z_]+)(?:=([^`]*))?`")


def settings_command(
    app: typer.Typer,
    name: str,
    kind: type[S],
    *,
    log_level: str = "INFO",
    panel: str | None = None,
    has_file: bool = True,
) -> Callable[[Callable[[S], None]], None]:
    """Add a command whose options are the settings of a class, plus `--debug`, `--config` and `--print-config`.

    The decorated function gets the checked settings, of which `model_fields_set` are those that the person gave, on the
    command line or in the file; its docstring is the help of the command.

    Args:
        kind: the class of the settings.
        log_level: log records from this level on go to standard error; with `--debug` all do.
        panel: the group of the command on the help page.
        has_file: False leaves `--config` and `--print-config` out.

    Raises:
        TypeError: a setting has a type that no option can have, or no default.
    """

    def decorate(run: Callable[[S], None]) -> None:
        def command(
            context: typer.Context,
            debug: bool,
            config: Path | None = None,
            print_config: bool = False,
            help_all: bool = False,  # heard before
            **values: Any,
        ) -> None:
            given = {name: value for name, value in values.items() if _is_given(context, name)}
            setup_logging("DEBUG" if debug else log_level, console=shared_console())

            def work() -> None:
                settings = read_settings(kind, given, config)
                remember_secrets(settings.flat())
                if print_config:
                    typer.echo(as_yaml(_of_kind(kind, settings.completed())), nl=False)
                else:
                    run(settings)

            with_errors(work, debug=debug, kind=kind)

        short = SHORT_HELP.get(name)
        settings = [setting for setting in kind.settings().values() if setting.panel != WITHOUT_OPTION]
        parameters = [
            _parameter(kind, setting, is_hidden=short is not None and setting.name not in short) for setting in settings
        ]
        if has_file:
            about = "File with settings, YAML, TOML or JSON: its values are the defaults; options win."
            shown = "Print the settings as YAML, and do nothing else."
            parameters.append(_parameter_of_command("config", None, Path | None, about))
            parameters.append(_parameter_of_command("print_config", False, bool, shown))
        if short is not None:
            about = f"Show all {len(settings)} options, and exit."
            how: Any = {"is_eager": True, "callback": show_all}
            parameters.append(_parameter_of_command("help_all", False, bool, about, **how))
        parameters += [
            _parameter_of_command("debug", False, bool, "Show debug messages, and the traceback of an error."),
            inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        ]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by inspect
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        command.__doc__ = run.__doc__
        app.command(name, cls=_refusing(kind), rich_help_panel=panel)(command)

    return decorate


def _of_kind(kind: type[Settings], settings: Settings) -> Settings:
    """Return the settings as the command has them, where a choice among them has led to those of another command."""
    if type(settings) is kind:
        return settings
    known = {*kind.settings(), *kind.model_fields}
    return kind(**{name: value for name, value in settings.flat().items() if name in known})


def _refusing(kind: type[Settings]) -> type[PagedCommand]:
    """Return the class of a command that tells what an option of elsewhere is called here."""

    class Refusing(PagedCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            known = {option for parameter in self.params for option in (*parameter.opts, *parameter.secondary_opts)}
            for word in args:
                flag = word.partition("=")[0]
                here = called_here(flag.removeprefix("--").replace("-", "_"), kind.settings())
                if flag.startswith("--") and flag not in known and has_no_option(kind, flag):
                    name = flag.removeprefix("--").replace("-", "_")
                    raise typer.BadParameter(f"there is no {flag}: give {name} in a file of --config", ctx=ctx)
                if flag.startswith("--") and flag not in known and here is not None:
                    value = VALUES.get(flag.removeprefix("--").replace("-", "_"))
                    option = option_name(kind.settings()[here]) + ("" if value is None else f" {value}")
                    raise typer.BadParameter(f"there is no {flag}: here it is {option}", ctx=ctx)
            return super().parse_args(ctx, args)

    return Refusing


def with_errors(run: Callable[[], None], *, debug: bool, kind: type[Settings] = Settings) -> None:
    """Call `run`; tell a `UserError` in one line on standard error.

    Args:
        kind: the settings of the command, whose options stand for their names in the message.

    Raises:
        typer.Exit: code 2 after a `UserError`, 130 after Ctrl-C, 143 after SIGTERM.
        UserError: as it came, with its traceback, if `debug` is set.
    """
    again = "; the same command with --resume goes on from the last checkpoint" if "resume" in kind.settings() else ""
    try:
        with stops_cleanly():
            run()
    except UserError as error:
        if debug:
            raise
        message = error.spelled(lambda name: spelling(kind, name))
        sys.stderr.write(visible(without_secrets(f"error: {' '.join(message.split())}")) + "\n")
        raise typer.Exit(USER_ERROR) from None
    except KeyboardInterrupt:
        sys.stderr.write(f"interrupted{again}\n")
        raise typer.Exit(INTERRUPTED) from None
    except Terminated:
        sys.stderr.write(f"terminated{again}\n")
        raise typer.Exit(TERMINATED) from None


def read_settings(kind: type[S], values: Mapping[str, Any], file: Path | None = None) -> S:
    """Return the settings with these values, and where there are none with those of the file.

    Raises:
        UserError: a value breaks a rule of its setting; the message names the option, or the file and the setting.
    """
    found = {} if file is None else read_config(file, kind)
    try:
        return kind(**{**found, **values})
    except ValidationError as error:
        raise UserError("; ".join(_complaint(kind, problem, values, file) for problem in error.errors())) from None


def option_name(setting: Setting) -> str:
    """Return the option of a setting: `--its-name`, or what its "option" says; the name of an argument."""
    if extra_of(setting.field).get("argument"):
        return setting.name.upper()
    return str(extra_of(setting.field).get("option", "--" + setting.name.replace("_", "-")))


def spelling(kind: type[Settings], name: str) -> str | None:
    """Return the option for the name of a setting, or for that of its field in a group; None where there is none."""
    if name in ("config", "print_config"):
        return "--" + name.replace("_", "-")
    named = kind.settings().get(name)
    fields = [one for one in kind.settings().values() if one.path[-1] == name]
    found = named or (fields[0] if fields else None)
    return None if found is None or found.panel == WITHOUT_OPTION else option_name(found)


def has_no_option(kind: type[Settings], flag: str) -> bool:
    """Return True if a flag is the name of a setting that only a file or Python sets."""
    setting = kind.settings().get(flag.removeprefix("--").replace("-", "_"))
    return setting is not None and setting.panel == WITHOUT_OPTION


def _complaint(kind: type[Settings], problem: Any, values: Mapping[str, Any], file: Path | None) -> str:
    message = UserError(str(problem["msg"]).removeprefix("Value error, ")).spelled(lambda name: spelling(kind, name))
    path = tuple(map(str, problem["loc"]))
    setting = kind.setting_at(path)
    if setting is None and (not path or problem["type"] == "value_error"):
        return message
    in_file = file is not None and (setting is None or setting.name not in values)
    name = (
        ".".join(path)
        if setting is None
        else setting.name
        if in_file or setting.panel == WITHOUT_OPTION
        else option_name(setting)
    )
    return f"{f'{file}: ' if in_file else ''}{name} {problem['input']}: {message[:1].lower()}{message[1:]}"


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _parameter(kind: type[Settings], setting: Setting, *, is_hidden: bool = False) -> inspect.Parameter:
    name = setting.name
    annotation: Any = setting.field.annotation
    shown = _choices(annotation)
    if COMMAS in setting.field.metadata:  # what is between the commas is checked by the settings
        annotation, shown = list[str], shown or f"<{get_args(annotation)[0].__name__}>"
    about = with_options(kind, setting.help)
    if extra_of(setting.field).get("argument"):
        information: Any = typer.Argument(help=about, show_default=False)
        default = inspect.Parameter.empty if setting.field.is_required() else setting.default
        return _keyword(name, default, _option_type(name, annotation), information)
    if setting.field.is_required():
        raise TypeError(f"setting {name!r} needs a default to become an option")
    if setting.is_open:
        annotation = Union[annotation, None]  # noqa: UP007  # made at run time
    option = option_name(setting)
    refusable = setting.default is True or (setting.default is None and bool in get_args(annotation))
    information = typer.Option(
        f"{option}/--no-{option.removeprefix('--')}" if refusable else option,
        help=about,
        metavar=shown,
        rich_help_panel=setting.panel,
        hidden=is_hidden,
    )
    return _keyword(name, setting.default, _option_type(name, annotation), information)


def with_options(kind: type[Settings], text: str) -> str:
    """Return a text in which the names of settings in backticks are the options of a command, where it has them."""
    return _QUOTED.sub(lambda quoted: _quoted_option(kind, quoted), text)


def _quoted_option(kind: type[Settings], quoted: re.Match[str]) -> str:
    """Return a name in backticks as the option that it stands for, if it does."""
    option = spelling(kind, quoted[1])
    if option is None:
        return quoted[0]
    return f"`{option}`" if quoted[2] is None else f"`{option} {quoted[2]}`"


def _parameter_of_command(name: str, default: Any, kind: Any, about: str, **how: Any) -> inspect.Parameter:
    option = typer.Option("--" + name.replace("_", "-"), help=about, rich_help_panel=COMMAND_PANEL, **how)
    return _keyword(name, default, kind, option)


def _keyword(name: str, default: Any, kind: Any, information: Any) -> inspect.Parameter:
    annotation = Annotated[kind, information]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _option_type(name: str, annotation: Any) -> Any:
    """Return the annotation in a form that typer reads. Choices become strings: the settings check them."""
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
    """Return the choices of a setting, or of the items of a list, as the placeholder of its option."""
    if get_origin(annotation) is Literal:
        return f"[{'|'.join(map(str, get_args(annotation)))}]"
    return next((shown for shown in map(_choices, get_args(annotation)) if shown), None)
