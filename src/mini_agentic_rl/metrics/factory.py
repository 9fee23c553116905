"""Loggers by name, as the setting `loggers` gives them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, get_args

from ..errors import UserError
from ..redaction import without_secrets
from .base import MetricsLogger, MultiLogger
from .console import ConsoleLogger
from .guarded import GuardedLogger
from .jsonl import JsonlLogger
from .services import (
    MODULES,
    MlflowLogger,
    SwanLabLogger,
    TensorBoardLogger,
    TrackioLogger,
    WandbLogger,
    load,
)

logger = logging.getLogger(__name__)

LoggerName = Literal["console", "jsonl", "tensorboard", "wandb", "swanlab", "mlflow", "trackio"]

_SERVICES: Final[dict[str, Callable[[Path, Mapping[str, Any]], MetricsLogger]]] = {
    "tensorboard": TensorBoardLogger,
    "wandb": WandbLogger,
    "swanlab": SwanLabLogger,
    "mlflow": MlflowLogger,
    "trackio": TrackioLogger,
}


def check_loggers(names: Sequence[str]) -> None:
    """Import what the loggers need, so that a run which cannot have them ends before it begins.

    Raises:
        UserError: an unknown name, or the package of a logger is not installed or cannot be loaded beside the others.
    """
    known = get_args(LoggerName)
    for name in names:
        if name not in known:
            raise UserError(f"unknown logger {name!r}; choose from {', '.join(known)}", setting="loggers")
    try:
        for name in names:
            if name in MODULES:
                load(name)
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
        names: Any of `LoggerName`; a name that is given twice counts once.
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


def _make(name: str, run_dir: Path, keep_rows: int | None, hyperparameters: Mapping[str, Any]) -> MetricsLogger:
    if name == "console":
        return ConsoleLogger()
    if name == "jsonl":
        return JsonlLogger(run_dir / "metrics.jsonl", keep_rows=keep_rows)
    try:
        return GuardedLogger(name, _SERVICES[name](run_dir, hyperparameters))
    except Exception as error:  # of a foreign package, and of the network behind it
        first = without_secrets(next(iter(str(error).strip().splitlines()), type(error).__name__))
        offline = f"; {name.upper()}_MODE=offline keeps it on this computer" if name in ("wandb", "swanlab") else ""
        logger.warning("the %s logger could not begin (%s): the run goes on without it%s", name, first, offline)
        return MetricsLogger()
