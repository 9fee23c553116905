"""The trainer, the run folder that it writes, and the report on it. All but settings loads when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .settings import RunnerSettings, RunSettings

if TYPE_CHECKING:
    from .parts import asks_for_processes
    from .recorded_run import Checkpoint, RecordedRun, record_run
    from .report import write_report
    from .run_folder import RunFolder, RunState
    from .statistics import AccuracyRow, accuracy_row, mean_pass_at_k, pass_at_k, wilson_interval
    from .trainer import Trainer

__all__ = [
    "AccuracyRow",
    "Checkpoint",
    "RecordedRun",
    "RunFolder",
    "RunSettings",
    "RunState",
    "RunnerSettings",
    "Trainer",
    "accuracy_row",
    "asks_for_processes",
    "mean_pass_at_k",
    "pass_at_k",
    "record_run",
    "wilson_interval",
    "write_report",
]

_LATER = {
    "AccuracyRow": "statistics",
    "Checkpoint": "recorded_run",
    "RecordedRun": "recorded_run",
    "RunFolder": "run_folder",
    "RunState": "run_folder",
    "Trainer": "trainer",
    "accuracy_row": "statistics",
    "asks_for_processes": "parts",
    "mean_pass_at_k": "statistics",
    "pass_at_k": "statistics",
    "record_run": "recorded_run",
    "wilson_interval": "statistics",
    "write_report": "report",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f".{_LATER[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
