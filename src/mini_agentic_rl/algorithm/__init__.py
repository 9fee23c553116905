"""Algorithms: what enqueues rollouts, reads what they left, and changes what the agent uses.

    base, decorator, baseline   what an algorithm is; `@algo` makes one of a function; `Baseline` changes nothing
    loop/                       a training with weights: sampling, credit, checkpoints; `Objective` is the update
    losses/                     losses of the policy gradient, one file each, and the published variants
    grpo/, ppo/                 `MiniGRPO` and `MiniPPO`: two objectives for that loop; `trl_grpo/` is a third, by TRL
    verl/                       `VERL`: a verl configuration, run by one of them
    apo/                        prompts instead of weights
    measure                     evaluation alone

Names whose modules need torch are loaded when they are asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .base import Algorithm, AlgorithmContext, OnFailure, ResultKind
from .baseline import Baseline, FastAlgorithm
from .decorator import FunctionalAlgorithm, algo
from .rollouts import cancel_leftovers

if TYPE_CHECKING:
    from .apo import APO, APOSettings
    from .grpo import Backend, GRPOSettings, MiniGRPO
    from .loop import ReinforcementLearning, WarmStart, read_progress
    from .losses import LOSSES, PRESETS, PolicyLossName, PresetName
    from .measure import Evaluation, Measure, peak_memory_bytes
    from .ppo import MiniPPO, PPOSettings
    from .settings import RolloutSettings, WarmStartSettings
    from .verl import VERL

__all__ = [
    "APO",
    "LOSSES",
    "PRESETS",
    "VERL",
    "APOSettings",
    "Algorithm",
    "AlgorithmContext",
    "Backend",
    "Baseline",
    "Evaluation",
    "FastAlgorithm",
    "FunctionalAlgorithm",
    "GRPOSettings",
    "Measure",
    "MiniGRPO",
    "MiniPPO",
    "OnFailure",
    "PPOSettings",
    "PolicyLossName",
    "PresetName",
    "ReinforcementLearning",
    "ResultKind",
    "RolloutSettings",
    "WarmStart",
    "WarmStartSettings",
    "algo",
    "cancel_leftovers",
    "peak_memory_bytes",
    "read_progress",
]

_LATER = {
    "apo": ("APO", "APOSettings"),
    "grpo": ("Backend", "GRPOSettings", "MiniGRPO"),
    "loop": ("ReinforcementLearning", "WarmStart", "read_progress"),
    "losses": ("LOSSES", "PRESETS", "PolicyLossName", "PresetName"),
    "measure": ("Evaluation", "Measure", "peak_memory_bytes"),
    "ppo": ("MiniPPO", "PPOSettings"),
    "settings": ("RolloutSettings", "WarmStartSettings"),
    "verl": ("VERL",),
}
_HOME = {name: module for module, names in _LATER.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
