"""Loggers by name, as the setting `loggers` gives them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from ..errors import UserError
from .base import MetricsLogger, MultiLogger
from .console import ConsoleLogger
from .jsonl import JsonlLogger
from .services import MlflowLogger, SwanLabLogger, TensorBoardLogger, TrackioLogger, WandbLogger

LoggerName = Literal["console", "jsonl", "tensorboard", "wandb", "swanlab", "mlflow", "trackio"]


def make_logger(names: Sequence[str], run_dir: str | Path, *, resume_step: int | None = None) -> MultiLogger:
    """Return one logger that passes everything on to those named; those made already are closed if a later one fails.

    Args:
        names: Any of `LoggerName`, each at most once.
        run_dir: Existing folder of the run; files go there.
        resume_step: Last step that counts when a run is continued (see `JsonlLogger`).

    Raises:
        UserError: an unknown name, a name given twice, or the package of a logger is not installed.
    """
    run_dir = Path(run_dir)
    known = get_args(LoggerName)
    for name in names:
        if name not in known:
            raise UserError(f"unknown logger {name!r}; choose from {', '.join(known)}", setting="loggers")
        if list(names).count(name) > 1:
            raise UserError(f"{name!r} is given twice", setting="loggers")
    made: list[MetricsLogger] = []
    try:
        for name in names:
            made.append(_make(name, run_dir, resume_step))
    except ImportError as error:
        MultiLogger(made).close()
        raise UserError(str(error)) from error
    except BaseException:
        MultiLogger(made).close()
        raise
    return MultiLogger(made)


def _make(name: str, run_dir: Path, resume_step: int | None) -> MetricsLogger:
    match name:
        case "console":
            return ConsoleLogger()
        case "jsonl":
            return JsonlLogger(run_dir / "metrics.jsonl", resume_step=resume_step)
        case "tensorboard":
            return TensorBoardLogger(run_dir)
        case "wandb":
            return WandbLogger(run_dir)
        case "swanlab":
            return SwanLabLogger(run_dir)
        case "mlflow":
            return MlflowLogger(run_dir)
        case _:
            return TrackioLogger(run_dir)
