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

EPISODE_IMITATION: Final[Mapping[str, Any]] = {
    **SHORT_IMITATION,
    "learner.learning_rate": 4e-4,
    "warm_start.examples": 96,
    "warm_start.learning_rate": 2e-3,
    "warm_start.batch_size": 8,
}
"""Episodes of several calls, those of `EPISODES`, need more examples until one of them succeeds, and there is nothing
to reinforce before that: of `units` and `retrieval` 48 and 40 examples left 0 to 2 in a hundred solved. Twice the rate
of reinforcement has destroyed such agents."""
