"""Metrics: the numbers of a run, shown on the console and kept in files or services. No torch."""

from .base import EVAL, HEADLINE_FAMILIES, MetricsLogger, MultiLogger, headline
from .console import ConsoleLogger, shared_console
from .factory import LoggerName, make_logger
from .jsonl import JsonlLogger, read_metrics
from .services import MlflowLogger, SwanLabLogger, TensorBoardLogger, TrackioLogger, WandbLogger

__all__ = [
    "EVAL",
    "HEADLINE_FAMILIES",
    "ConsoleLogger",
    "JsonlLogger",
    "LoggerName",
    "MetricsLogger",
    "MlflowLogger",
    "MultiLogger",
    "SwanLabLogger",
    "TensorBoardLogger",
    "TrackioLogger",
    "WandbLogger",
    "headline",
    "make_logger",
    "read_metrics",
    "shared_console",
]
