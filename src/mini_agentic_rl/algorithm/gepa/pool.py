"""The prompts of a search with their scores on each validation task. Written whole into every checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..prompt_search.state import SearchState
from .pareto import pareto_weights


@dataclass
class PooledPrompt:
    """One prompt template of the pool."""

    name: str
    """`v0` is the first prompt; each further one has the next number."""
    template: str
    parent: str | None
    scores: list[float]
    """Its reward on each validation task of the front."""
    iteration: int = 0
    """The iteration that made it."""

    @property
    def score(self) -> float:
        """Mean of its scores."""
        return sum(self.scores) / len(self.scores)


@dataclass
class Pool(SearchState):
    """State of a search."""

    algorithm: ClassVar[str] = "GEPA"
    unit: ClassVar[str] = "iteration"

    prompts: list[PooledPrompt] = field(default_factory=list)
    iteration: int = 0
    """Finished iterations."""
    tried: int = 0
    """Successors that were tried, of which `prompts` holds those that were better."""
    rollouts: int = 0
    """Rollouts so far."""

    @classmethod
    def parse(cls, state: dict[str, Any]) -> Pool:
        return cls(prompts=[PooledPrompt(**prompt) for prompt in state.pop("prompts")], **state)

    @property
    def steps(self) -> int:
        return self.iteration

    @property
    def first(self) -> PooledPrompt | None:
        return self.prompts[0] if self.prompts else None

    @property
    def best(self) -> PooledPrompt:
        """Return the prompt with the highest mean; of equal ones the oldest."""
        return max(self.prompts, key=lambda prompt: prompt.score)

    @property
    def winner(self) -> PooledPrompt | None:
        return self.best if self.prompts else None

    @property
    def weights(self) -> list[int]:
        """For each prompt the validation tasks that it is best at; 0 where another dominates it."""
        return pareto_weights([prompt.scores for prompt in self.prompts]) if self.prompts else []

    @property
    def history(self) -> list[dict[str, Any]]:
        return [
            {
                "version": prompt.name,
                "parent": prompt.parent,
                "iteration": prompt.iteration,
                "score": prompt.score,
                "wins": weight,
                "template": prompt.template,
            }
            for prompt, weight in zip(self.prompts, self.weights, strict=True)
        ]

    @property
    def progress(self) -> Mapping[str, Any]:
        return {"iterations": self.iteration, "rollouts": self.rollouts, "tried": self.tried}
