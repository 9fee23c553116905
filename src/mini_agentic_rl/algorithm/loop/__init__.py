"""The loop of a training, for every algorithm alike: measure, warm up, [sample, update]*, measure.

`ReinforcementLearning` is the base of the algorithms, `Objective` what each of them brings along: how the groups of
trajectories of a step become new weights. Names are loaded when they are asked for: settings need no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..settings import WarmStartSettings
    from .groups import Group, Trajectory
    from .objective import Learners, Objective
    from .progress import RunProgress, read_progress
    from .reinforcement import ReinforcementLearning
    from .settings import LoopSettings
    from .warm_start import WarmStart

__all__ = [
    "Group",
    "Learners",
    "LoopSettings",
    "Objective",
    "ReinforcementLearning",
    "RunProgress",
    "Trajectory",
    "WarmStart",
    "WarmStartSettings",
    "read_progress",
]

_HOME = {
    "Group": "groups",
    "Learners": "objective",
    "LoopSettings": "settings",
    "Objective": "objective",
    "ReinforcementLearning": "reinforcement",
    "RunProgress": "progress",
    "Trajectory": "groups",
    "WarmStart": "warm_start",
    "WarmStartSettings": "warm_start",
    "read_progress": "progress",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
