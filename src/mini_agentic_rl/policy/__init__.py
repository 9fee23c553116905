"""The model: sampling and learning on one set of weights. Knows only token ids; torch lives here.

The settings need no torch; all else is loaded when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import (
    AdapterMismatchError,
    CacheFullError,
    ModelNotFoundError,
    PolicyError,
    PromptTooLongError,
    QueueFullError,
)
from .settings import (
    Dtype,
    EngineSettings,
    LearnerSettings,
    LoraSettings,
    ModelSettings,
    Quantization,
    Schedule,
    ValueSettings,
)

if TYPE_CHECKING:
    from .engine import Engine
    from .learner import Learner, Loss, LossInputs, LossOutputs, TermStreams
    from .load import load_model
    from .model import DEFAULT_ADAPTER, PolicyModel
    from .policy import Policy
    from .value_learner import ValueLearner

__all__ = [
    "DEFAULT_ADAPTER",
    "AdapterMismatchError",
    "CacheFullError",
    "Dtype",
    "Engine",
    "EngineSettings",
    "Learner",
    "LearnerSettings",
    "LoraSettings",
    "Loss",
    "LossInputs",
    "LossOutputs",
    "ModelNotFoundError",
    "ModelSettings",
    "Policy",
    "PolicyError",
    "PolicyModel",
    "PromptTooLongError",
    "Quantization",
    "QueueFullError",
    "Schedule",
    "TermStreams",
    "ValueLearner",
    "ValueSettings",
    "load_model",
]

_LATER = {
    "DEFAULT_ADAPTER": "model",
    "Engine": "engine",
    "Learner": "learner",
    "Loss": "learner",
    "LossInputs": "learner",
    "LossOutputs": "learner",
    "Policy": "policy",
    "PolicyModel": "model",
    "TermStreams": "learner",
    "ValueLearner": "value_learner",
    "load_model": "load",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f".{_LATER[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
