"""Defaults of a training of the SQL agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..defaults import SHORT_IMITATION

SQL_DEFAULTS: Final[Mapping[str, Any]] = {
    **SHORT_IMITATION,
    "warm_start.examples": 192,
    "learner.max_batch_tokens": 1200,
}
"""The agent needs more examples until it writes queries at all, and has longer rollouts: those of a question with their
prompt are about 1,000 tokens."""
