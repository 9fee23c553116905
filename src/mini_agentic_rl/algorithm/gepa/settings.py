"""Settings of GEPA."""

from __future__ import annotations

from pydantic import Field

from ..prompt_search.settings import PromptSearchSettings


class GEPASettings(PromptSearchSettings):
    """The search: how many rollouts it may cost, on how many tasks, and who reflects."""

    reflection_model: str = "gpt-5-mini"
    """Model that reads what happened and writes a new prompt."""
    max_rollouts: int = Field(default=400, ge=1)
    """Rollouts that the search may cost; what was begun is finished."""
    minibatch_size: int = Field(default=3, ge=1)
    """Training tasks that a prompt and its successor are tried on: b of the paper."""
    pareto_size: int = Field(default=32, ge=1)
    """Validation tasks over which prompts form a Pareto front: n_pareto of the paper."""
    perfect_reward: float = Field(default=1.0, allow_inf_nan=False)
    """A prompt whose whole minibatch earns this much is not reflected on: there is nothing to mend."""
