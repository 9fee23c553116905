"""Settings of APO."""

from __future__ import annotations

from pydantic import Field

from ...algorithm.settings import OnFailure
from ...config import Settings


class APOSettings(Settings):
    """The search: how wide, how long, on how many tasks, and which models criticise and rewrite."""

    gradient_model: str = "gpt-5-mini"
    """Model that criticises a prompt: the textual gradient (Pryzant et al. 2023, section 2.1)."""
    apply_edit_model: str = "gpt-4.1-mini"
    """Model that rewrites a prompt so that it answers a criticism."""
    gradient_batch_size: int = Field(default=4, ge=1)
    """Training tasks that a prompt is tried on before it is criticised."""
    val_batch_size: int = Field(default=16, ge=1)
    """Validation tasks on which the candidates of a round are compared, the same ones for all."""
    beam_width: int = Field(default=4, ge=1)
    """Prompts that survive a round."""
    branch_factor: int = Field(default=4, ge=1)
    """New prompts made of each parent in a round."""
    beam_rounds: int = Field(default=3, ge=0)
    """Rounds."""
    run_initial_validation: bool = True
    """Measure the first prompt on all validation tasks, so that a worse one cannot replace it."""
    rollout_batch_timeout: float = Field(default=3600.0, gt=0)
    """Seconds that the rollouts of one prompt may take; those of n prompts, run together, get n times that. What has
    not ended by then is cancelled."""
    on_failure: OnFailure = "zero"
    """Treatment of a rollout that fails, takes too long or earns no reward: it counts as 0 (`zero`), is left out of
    its prompt's mean (`drop`), or is tried again after a failure and counts as 0 when it fails for good (`retry`)."""
    max_attempts: int = Field(default=3, ge=1)
    """At most this many attempts at a rollout with `on_failure="retry"`."""
    prompt_name: str | None = None
    """Name of the resource to improve; needed only where the initial resources hold several prompts."""
    critic_timeout: float = Field(default=120.0, gt=0)
    """Seconds that one answer of a critic may take; the client tries again as often as its own `max_retries` says."""
    critic_concurrency: int = Field(default=8, ge=1)
    """Calls of the critic at once."""
    edit_attempts: int = Field(default=2, ge=1)
    """Times that a rewritten prompt is asked for until it can be used, the first one included."""
    transcript_characters: int = Field(default=6000, ge=200)
    """A rollout's transcript is cut in its middle beyond this length before the critic reads it."""
    diversity_temperature: float | None = Field(default=1.0, ge=0)
    """Sampling temperature of the models that criticise and rewrite; None sends none, for models that accept none."""
    seed: int = Field(default=0, ge=0)
    """Seed of the order of the tasks and of the rollouts' sampling."""
