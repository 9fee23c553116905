"""GEPA: reflective prompt evolution (Agrawal et al. 2025, "GEPA: Reflective Prompt Evolution Can Outperform
Reinforcement Learning", arXiv:2507.19457, algorithm 1).

    P <- [first prompt], S <- its scores on D_pareto
    while the budget lasts:
        parent <- drawn from the Pareto front of P over D_pareto (algorithm 2, `pareto.py`)
        M      <- a minibatch of D_feedback; run the parent on it, keep traces and rewards
        child  <- what a model writes that has read parent, traces and rewards (`reflection.py`)
        if the child earns more on M than the parent: P <- P + child, S <- S + its scores on D_pareto
    return the prompt of P with the highest mean over D_pareto

The system has one prompt here, so that no module is selected and nothing is merged; D_feedback are the training tasks,
D_pareto validation tasks. No weight is changed, and no torch is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ..prompt_search.algorithm import PromptSearch
from ..prompt_search.run import SearchInputs
from ..prompt_search.state import SearchState
from .pool import Pool
from .search import PoolSearchRun
from .settings import GEPASettings

if TYPE_CHECKING:
    from openai import AsyncOpenAI

TaskT = TypeVar("TaskT")


class GEPA(PromptSearch[GEPASettings, Pool, TaskT]):
    """Improves the prompt template among the initial resources, as `APO` does, by another search.

    A rollout that fails, takes too long or earns no reward counts as 0, is logged with its reason, and is counted in
    `summary`. Notes that an agent emits (`emit_message`) reach the model that reflects: the feedback of the paper.

    A row of `history` is a prompt of the pool: `version`, `parent`, `iteration`, `score`, `wins` (the validation tasks
    that it is best at, 0 where another dominates it) and `template`. The `summary` also has `iterations`, `rollouts`
    and `tried` successors.

    Args:
        async_openai_client: client of the model that reflects: `openai.AsyncOpenAI` on any OpenAI-compatible endpoint.
        settings: the search; single settings may also be given by name (`max_rollouts=200`).

    Raises:
        pydantic.ValidationError: a setting is out of its range or has no such name.
    """

    state_class: ClassVar[type[SearchState]] = Pool

    def __init__(
        self, async_openai_client: AsyncOpenAI, *, settings: GEPASettings | None = None, **overrides: Any
    ) -> None:
        super().__init__(async_openai_client, GEPASettings(**((settings or GEPASettings()).model_dump() | overrides)))

    @property
    def pool(self) -> Pool | None:
        """State of the search; None before it has begun."""
        return self.state

    def new_run(self, inputs: SearchInputs) -> PoolSearchRun:
        return PoolSearchRun(self.settings, inputs)
