"""Settings of APO."""

from __future__ import annotations

from pydantic import Field

from ..settings import PromptSearchSettings


class APOSettings(PromptSearchSettings):
    """The search: how wide, how long, on how many tasks, and who criticises."""

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
