"""The settings of learning from use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import Field

from ...algorithm.grpo.settings import GRPOSettings
from ...config import Settings

USE_LOOP: Final[Mapping[str, Any]] = {
    "baseline": "none",  # advantages are made before: sessions have no groups of one size
    "normalize_advantage": False,
    "samples_per_prompt": 1,
    "importance_correction": "token",  # what was sampled by older weights is weighed
}
"""Settings of the update that a person does not set."""


def use_loop(**given: Any) -> GRPOSettings:
    """Return the settings of the update, with those that learning from use needs."""
    return GRPOSettings(**{**USE_LOOP, **given})


class UseSettings(Settings):
    """The time of a step, and the sessions that it is taken of."""

    min_sessions: int = Field(default=16, ge=1)
    """A step is taken once so many judged sessions can be compared with something."""
    max_sessions: int = Field(default=64, ge=1)
    """At most this many sessions in one step; the others wait for the next."""
    max_age: int = Field(default=16, ge=0)
    """Sessions that weights older than this many versions have answered are left out; younger ones are weighed by what
    the versions differ by."""
    group_judged: int = Field(default=4, ge=2)
    """Number of sessions of one key that a judge, where there is one, sees beside each other."""
