"""The model: sampling and learning on one set of weights. Knows only token ids; torch lives here."""

from .engine import Engine, EngineSettings
from .errors import (
    AdapterMismatchError,
    CacheFullError,
    ModelNotFoundError,
    PolicyError,
    PromptTooLongError,
    QueueFullError,
)
from .learner import Learner, LearnerSettings, Loss, LossInputs, LossOutputs, TermStreams
from .load import LoraSettings, load_model
from .model import DEFAULT_ADAPTER, PolicyModel
from .policy import Policy
from .value_learner import ValueLearner, ValueSettings

__all__ = [
    "DEFAULT_ADAPTER",
    "AdapterMismatchError",
    "CacheFullError",
    "Engine",
    "EngineSettings",
    "Learner",
    "LearnerSettings",
    "LoraSettings",
    "Loss",
    "LossInputs",
    "LossOutputs",
    "ModelNotFoundError",
    "Policy",
    "PolicyError",
    "PolicyModel",
    "PromptTooLongError",
    "QueueFullError",
    "TermStreams",
    "ValueLearner",
    "ValueSettings",
    "load_model",
]
