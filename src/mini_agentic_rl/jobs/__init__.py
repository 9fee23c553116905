"""The jobs behind the commands: settings in, a summary out. Here the trainer meets the agents that ship with it.

Names are loaded when they are first asked for: the settings load no torch, the jobs do.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checks import check_model
    from .config import PPO, SqlTrainConfig, TrainConfig, with_agent_defaults
    from .data import convert_job, dataset_job
    from .evaluate import eval_job
    from .plan import plan_job
    from .serve import open_server, score_job, serve_job
    from .settings import ChatSettings, ConvertSettings, DatasetSettings, EvalSettings, PlanSettings, ServeSettings
    from .summary import training_summary
    from .train import last_logged, make_algorithm, train_job

_HOME = {
    "PPO": "config",
    "ChatSettings": "settings",
    "ConvertSettings": "settings",
    "DatasetSettings": "settings",
    "EvalSettings": "settings",
    "PlanSettings": "settings",
    "ServeSettings": "settings",
    "SqlTrainConfig": "config",
    "TrainConfig": "config",
    "check_model": "checks",
    "convert_job": "data",
    "dataset_job": "data",
    "eval_job": "evaluate",
    "last_logged": "train",
    "make_algorithm": "train",
    "open_server": "serve",
    "plan_job": "plan",
    "score_job": "serve",
    "serve_job": "serve",
    "train_job": "train",
    "training_summary": "summary",
    "with_agent_defaults": "config",
}

__all__ = [
    "PPO",
    "ChatSettings",
    "ConvertSettings",
    "DatasetSettings",
    "EvalSettings",
    "PlanSettings",
    "ServeSettings",
    "SqlTrainConfig",
    "TrainConfig",
    "check_model",
    "convert_job",
    "dataset_job",
    "eval_job",
    "last_logged",
    "make_algorithm",
    "open_server",
    "plan_job",
    "score_job",
    "serve_job",
    "train_job",
    "training_summary",
    "with_agent_defaults",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
