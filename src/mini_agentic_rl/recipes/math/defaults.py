"""Defaults of a training on generated arithmetic, the main job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

ARITHMETIC_DEFAULTS: Final[Mapping[str, Any]] = {
    "loop.total_steps": 12,
    "lora.r": 16,
    "learner.learning_rate": 2e-4,
    "warm_start.examples": 1024,
    "warm_start.learning_rate": 2e-3,
    "warm_start.batch_size": 8,
    "warm_start.schedule": "linear",
}
"""To read stories that it has never seen, the model imitates many different ones first, where a few would teach the
form of a call only; from there it is reinforced at a low rate that falls (a higher one, which suits a model
that has just learnt the form, destroys what it has read)."""
