"""Defaults that most recipes train with; those with others of their own declare them in their folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

SHORT_IMITATION: Final[Mapping[str, Any]] = {
    "loop.total_steps": 12,
    "lora.r": 8,
    "learner.learning_rate": 8e-4,
    "warm_start.examples": 32,
    "warm_start.learning_rate": 1e-3,
    "warm_start.batch_size": 4,
    "warm_start.schedule": "constant",
}
"""Imitation teaches the form, rewards the rest."""
