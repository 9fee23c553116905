"""The seconds of a step from rates: those that a run measured, or those measured once on a machine of ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .memory_plan import PlannedWork
from .rank_plan import Spread


@dataclass(frozen=True)
class StepRates:
    """Rates of one process, measured with one model; a larger model is taken to be slower by its number of weights."""

    source: str
    """Machine and program that measured them, for a person to judge."""
    parameters: int
    """Number of weights of that model."""
    sampled: float
    """Sampled tokens a second of one process that samples."""
    learned: float
    """Packed tokens (prompts counted once for each task) a second of one rank that learns."""

    def of_model(self, parameters: int) -> StepRates:
        """Return the rates that a model of so many weights is taken to have."""
        factor = self.parameters / parameters
        return StepRates(self.source, parameters, self.sampled * factor, self.learned * factor)


_HERE: Final = "2 cores (AMD EPYC with AVX-512 and bfloat16 products), embedded model, bfloat16, 2026-11-23"
OWN_ON_CPU: Final = StepRates(f"{_HERE}: benchmarks/grpo_step.py, nothing else running", 134_515_008, 442, 563)
"""W1: 2,048 tokens sampled in 4.6 s, and 3,548 learned in 6.3 s."""
VLLM_ON_CPU: Final = StepRates(
    f"{_HERE}: benchmarks/sampling.py --peers, vLLM 0.32 with two threads, nothing else running", 134_515_008, 419, 563
)


@dataclass(frozen=True)
class StepSeconds:
    """The parts of a step."""

    sampling: float
    learning: float
    overlapped: bool = False
    """True if sampling goes on while learning does."""

    @property
    def total(self) -> float:
        """Seconds from one step to the next."""
        return max(self.sampling, self.learning) if self.overlapped else self.sampling + self.learning


def step_seconds(work: PlannedWork, spread: Spread, rates: StepRates, *, overlapped: bool) -> StepSeconds:
    """Predict a step in which every rollout samples as much as it may.

    Left out are what agents wait for besides the model, publishing weights and summing gradients.
    """
    sampled = work.sampled_sequences * work.max_new_tokens
    share = spread.of_rank(work)
    learned = share.tasks_per_step * work.prompt_tokens + share.sampled_sequences * work.max_new_tokens
    return StepSeconds(sampled / (rates.sampled * spread.samplers), learned / rates.learned, overlapped)
