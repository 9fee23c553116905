"""Loggers by name, as the setting `loggers` gives them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, get_args

from ..errors import UserError
from ..plugins import choices_or_plugin, load_plugin, or_plugin
from ..redaction import without_secrets
from .base import MetricsLogger, MultiLogger
from .console import ConsoleLogger
from .guarded import GuardedLogger
from .jsonl import JsonlLogger
from .services import ServiceLogger, TensorBoardLogger, WandbLogger

logger = logging.getLogger(__name__)

_Known = Literal["console", "jsonl", "tensorboard", "wandb"]
LOGGERS: Final[tuple[str, ...]] = get_args(_Known)
"""The loggers that are built in."""


Maker: TypeAlias = Callable[[Path, Mapping[str, Any]], MetricsLogger]
"""Makes a logger, called with the run's folder and the run's configuration as JSON values."""

if TYPE_CHECKING:
    LoggerName: TypeAlias = str
else:  # the choices that the doors offer, and those of plugins
    LoggerName = Annotated[_Known, choices_or_plugin("loggers")]

_FILES: Final = ("console", "jsonl")
_SERVICES: Final[dict[str, Maker]] = {
    "tensorboard": TensorBoardLogger,
    "wandb": WandbLogger,
}


def check_loggers(names: Sequence[str]) -> None:
    """Import what the loggers need, so that a run which cannot have them ends before it begins.

    Raises:
        UserError: an unknown name, or the package of a logger is not installed or cannot be loaded beside the others.
    """
    makers = [_maker(name) for name in names if name not in _FILES]
    try:
        for maker in makers:
            if isinstance(maker, type) and issubclass(maker, ServiceLogger):
                maker.load()
    except UserError:
        raise
    except ImportError as error:
        raise UserError(str(error), setting="loggers") from error


def make_logger(
    names: Sequence[str],
    run_dir: str | Path,
    *,
    keep_rows: int | None = None,
    hyperparameters: Mapping[str, Any] | None = None,
) -> MultiLogger:
    """Return one logger that passes everything on to those named; those made already are closed if a later one fails.

    Args:
        names: Any of `LOGGERS` or of a plugin; a name that is given twice counts once.
        run_dir: Existing folder of the run; files go there.
        keep_rows: Rows of metrics that stay when a run is continued (see `JsonlLogger`).
        hyperparameters: The configuration of the run, as JSON values, for the services that keep one.

    A service that cannot begin is left out, which the log says.

    Raises:
        UserError: see `check_loggers`.
    """
    check_loggers(names)
    made: list[MetricsLogger] = []
    try:
        for name in dict.fromkeys(names):
            made.append(_make(name, Path(run_dir), keep_rows, hyperparameters or {}))
    except BaseException:
        MultiLogger(made).close()
        raise
    return MultiLogger(made)


def _maker(name: str) -> Maker:
    """Return what makes a logger that is no file or console.

    Raises:
        UserError: there is no such logger, or it is a plugin's that cannot be loaded.
    """
    make: Maker | None = _SERVICES.get(name) or load_plugin("loggers", name, setting="loggers")
    if make is None:
        raise UserError(
            f"unknown logger {name!r}; choose from {', '.join(LOGGERS)}{or_plugin('loggers')}", setting="loggers"
        )
    return make


def _make(name: str, run_dir: Path, keep_rows: int | None, hyperparameters: Mapping[str, Any]) -> MetricsLogger:
    if name == "console":
        return ConsoleLogger()
    if name == "jsonl":
        return JsonlLogger(run_dir / "metrics.jsonl", keep_rows=keep_rows)
    maker = _maker(name)
    try:
        made = maker(run_dir, hyperparameters)
        if not isinstance(made, MetricsLogger):
            raise TypeError(f"a {type(made).__name__} is no MetricsLogger")
        return GuardedLogger(name, made)
    except Exception as error:  # of a foreign package, and of the network behind it
        first = without_secrets(next(iter(str(error).strip().splitlines()), type(error).__name__))
        setting = getattr(maker, "offline_setting", None)
        hint = f"; {setting} keeps it on this computer" if setting else ""
        logger.warning("the %s logger could not begin (%s): the run goes on without it%s", name, first, hint)
        return MetricsLogger()
