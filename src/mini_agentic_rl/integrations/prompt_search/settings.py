"""Settings of APO."""

from __future__ import annotations

from pydantic import Field

from ...algorithm.settings import OnFailure
from ...config import Settings


class APOSettings(Settings):
    """Width and length of the search, batch sizes, and the models of the critic."""

    gradient_model: str = "gpt-5-mini"
    """Model that criticises a prompt: the textual gradient (Pryzant et al. 2023, section 2.1)."""
    apply_edit_model: str = "gpt-4.1-mini"
    """Model that rewrites a prompt so that it answers a criticism."""
    gradient_batch_size: int = Field(default=4, ge=1)
    """Training tasks that a prompt is tried on before its criticism."""
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
    """Seconds for the rollouts of one prompt; n prompts that run together get n times that. Unfinished rollouts are
    cancelled."""
    on_failure: OnFailure = "zero"
    """Treatment of a rollout that fails, takes too long or earns no reward: it counts as 0 (`zero`), is left out of
    its prompt's mean (`drop`), or is tried again after a failure and counts as 0 when it fails for good (`retry`)."""
    max_attempts: int = Field(default=3, ge=1)
    """At most this many attempts at a rollout with `on_failure="retry"`."""
    prompt_name: str | None = None
    """Name of the resource to improve; required if the initial resources have several prompts."""
    critic_timeout: float = Field(default=120.0, gt=0)
    """Timeout of one answer of the critic, in seconds; the client retries up to its `max_retries`."""
    critic_concurrency: int = Field(default=8, ge=1)
    """Maximum number of concurrent calls of the critic."""
    edit_attempts: int = Field(default=2, ge=1)
    """Maximum number of attempts at a usable rewritten prompt."""
    transcript_characters: int = Field(default=6000, ge=200)
    """Maximum length of a rollout's transcript for the critic; longer ones are cut in the middle."""
    diversity_temperature: float | None = Field(default=1.0, ge=0)
    """Sampling temperature of the critic; None sends none, for models that accept none."""
    seed: int = Field(default=0, ge=0)
    """Seed of the order of the tasks and of the rollouts' sampling."""
