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

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from ...errors import UserError
from ...gateway import resources_with_proxy
from ...types import Dataset, PromptTemplate
from ..apo.prompt_resource import find_prompt
from ..base import Algorithm, AlgorithmContext
from .pareto import pareto_weights
from .pool import Pool, read_logged
from .search import PoolSearchRun
from .settings import GEPASettings

if TYPE_CHECKING:
    from openai import AsyncOpenAI

TaskT = TypeVar("TaskT")


class GEPA(Algorithm, Generic[TaskT]):
    """Improves the prompt template among the initial resources, as `APO` does, by another search.

    A rollout that fails, takes too long or earns no reward counts as 0, is logged with its reason, and is counted in
    `summary`. Notes that an agent emits (`emit_message`) reach the model that reflects: the feedback of the paper.

    Args:
        async_openai_client: client of the model that reflects: `openai.AsyncOpenAI` on any OpenAI-compatible endpoint.
        settings: the search; single settings may also be given by name (`max_rollouts=200`).

    Raises:
        pydantic.ValidationError: a setting is out of its range or has no such name.
    """

    honours: ClassVar[frozenset[str]] = frozenset({"on_failure"})

    def __init__(
        self, async_openai_client: AsyncOpenAI, *, settings: GEPASettings | None = None, **overrides: Any
    ) -> None:
        super().__init__()
        self.client = async_openai_client
        self.settings = GEPASettings(**((settings or GEPASettings()).model_dump() | overrides))
        self._configuration = {"search": self.settings.model_dump(mode="json")}
        self.pool: Pool | None = None
        self._seed_prompt: PromptTemplate | None = None

    @property
    def configuration(self) -> Mapping[str, Any]:
        """Settings of the search, as they were given."""
        return self._configuration

    def rows_to_keep(self, checkpoint: Path | None) -> int | None:
        return 0 if checkpoint is None else read_logged(checkpoint)

    def bind(self, context: AlgorithmContext) -> None:
        if context.on_failure is not None:
            self.settings = self.settings.model_copy(update={"on_failure": context.on_failure})
        super().bind(context)

    def get_best_prompt(self) -> PromptTemplate:
        """Return the prompt with the highest mean reward on the validation tasks so far.

        Raises:
            ValueError: the algorithm has not run.
        """
        if self.pool is None or self._seed_prompt is None or not self.pool.prompts:
            raise ValueError("no best prompt yet: GEPA has not run")
        return self._seed_prompt.model_copy(update={"template": self.pool.best.template})

    @property
    def history(self) -> list[dict[str, Any]]:
        """Every prompt of the pool in the order of making: `version`, `parent`, `iteration`, `score`, `wins` (the
        validation tasks that it is best at, 0 where another dominates it) and `template`."""
        if self.pool is None or not self.pool.prompts:
            return []
        wins = pareto_weights([prompt.scores for prompt in self.pool.prompts])
        return [
            {
                "version": prompt.name,
                "parent": prompt.parent,
                "iteration": prompt.iteration,
                "score": prompt.score,
                "wins": weight,
                "template": prompt.template,
            }
            for prompt, weight in zip(self.pool.prompts, wins, strict=True)
        ]

    @property
    def summary(self) -> Mapping[str, Any]:
        """`best_version`, `best_prompt` and its `score`, `iterations`, `rollouts`, `tried` successors, `history`,
        `rejected` (iterations that came to nothing: reason to count), `unrewarded` (rollouts without a reward)."""
        if self.pool is None or not self.pool.prompts:
            return {}
        best = self.pool.best
        return {
            "best_version": best.name,
            "best_prompt": best.template,
            "score": best.score,
            "iterations": self.pool.iteration,
            "rollouts": self.pool.rollouts,
            "tried": self.pool.tried,
            "history": self.history,
            "rejected": dict(self.pool.rejected),
            "unrewarded": dict(self.pool.unrewarded),
        }

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Run the whole search; see the top of this module.

        Raises:
            UserError: a data set or the prompt is missing, the checkpoint belongs to another run, or the endpoint of
                the model that reflects refuses every call.
        """
        if train_dataset is None or len(train_dataset) == 0:
            raise UserError("GEPA needs `train_dataset`: the tasks on which a prompt is seen at work")
        if val_dataset is None or len(val_dataset) == 0:
            raise UserError("GEPA needs `val_dataset`: the tasks on which prompts are compared")
        held = self.context.initial_resources
        name, self._seed_prompt = find_prompt(held, self.settings.prompt_name, "GEPA")
        async with resources_with_proxy(held, self.context.llm_proxy, self.context.store) as resources:
            await PoolSearchRun(self, name, self._seed_prompt, resources, train_dataset, val_dataset).all()
