"""APO: automatic prompt optimisation by beam search over textual gradients (ProTeGi; Pryzant et al. 2023,
arXiv:2305.03495, algorithms 1 and 2).

    [try each prompt of the beam on some tasks -> criticise it -> rewrite it `branch_factor` times
     -> compare old and new on the same validation tasks -> keep the best `beam_width`] * `beam_rounds`

No weight is changed, and no torch is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from ...compat import find_elsewhere
from ...errors import UserError
from ...gateway import resources_with_proxy
from ...types import Dataset, PromptTemplate
from ..base import Algorithm, AlgorithmContext
from .beam import Search, Version, read_logged
from .prompt_resource import find_prompt
from .search import SearchRun
from .settings import APOSettings

if TYPE_CHECKING:
    from openai import AsyncOpenAI

TaskT = TypeVar("TaskT")

__getattr__ = partial(find_elsewhere, __name__)


class APO(Algorithm, Generic[TaskT]):
    """Improves the prompt template among the initial resources.

    A prompt's score is the mean reward of its rollouts. A rollout that fails, takes too long or earns no reward counts
    as the setting `on_failure` says, is logged with its reason, and is counted in `summary`.

    `APO[Task](…)` says of which type the tasks are; that changes nothing.

    Args:
        async_openai_client: client of the critic: `openai.AsyncOpenAI` on any OpenAI-compatible endpoint.
        settings: the search; single settings may also be given by name (`beam_width=2`).

    Raises:
        pydantic.ValidationError: a setting is out of its range or has no such name.
    """

    honours: ClassVar[frozenset[str]] = frozenset({"on_failure"})

    def __init__(
        self, async_openai_client: AsyncOpenAI, *, settings: APOSettings | None = None, **overrides: Any
    ) -> None:
        super().__init__()
        overrides.pop("_poml_trace", None)  # a switch of agent-lightning's, whose templates are another language's
        self.client = async_openai_client
        self.settings = APOSettings(**((settings or APOSettings()).model_dump() | overrides))
        self._configuration = {"search": self.settings.model_dump(mode="json")}
        self.search: Search | None = None
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
        """Return the prompt with the highest mean reward on all validation tasks so far.

        Raises:
            ValueError: the algorithm has not run.
        """
        if self.search is None or self._seed_prompt is None:
            raise ValueError("no best prompt yet: APO has not run")
        template = self.search.version(self.search.best).template
        return self._seed_prompt.model_copy(update={"template": template})

    @property
    def history(self) -> list[dict[str, Any]]:
        """Every version in the order of making: `version`, `parent`, `round`, `score` on all validation tasks, `scores`
        as (round, score on that round's batch), `critique` and `template`."""
        return [] if self.search is None else [_row(version) for version in self.search.versions]

    @property
    def summary(self) -> Mapping[str, Any]:
        """`best_version`, `best_prompt` and its `score`, `rounds`, `history`, `rejected` (candidates that came to
        nothing: reason to count), `unrewarded` (rollouts without a reward: reason to count), `seconds` by phase."""
        if self.search is None:
            return {}
        best = self.search.version(self.search.best)
        return {
            "best_version": best.name,
            "best_prompt": best.template,
            "score": best.score,
            "rounds": self.search.rounds,
            "history": self.history,
            "rejected": dict(self.search.rejected),
            "unrewarded": dict(self.search.unrewarded),
            "seconds": dict(self.search.seconds),
        }

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Run the whole search; see the top of this module.

        Raises:
            UserError: a data set or the prompt is missing, the checkpoint belongs to another run, or the critic's
                endpoint refuses every call.
        """
        if train_dataset is None or len(train_dataset) == 0:
            raise UserError("APO needs `train_dataset`: the tasks on which the critic sees a prompt at work")
        if val_dataset is None or len(val_dataset) == 0:
            raise UserError("APO needs `val_dataset`: the tasks on which prompts are compared")
        name, self._seed_prompt = find_prompt(self.context.initial_resources, self.settings.prompt_name, "APO")
        held = self.context.initial_resources
        async with resources_with_proxy(held, self.context.llm_proxy, self.context.store) as resources:
            await SearchRun(self, name, self._seed_prompt, resources, train_dataset, val_dataset).all()


def _row(version: Version) -> dict[str, Any]:
    return {
        "version": version.name,
        "parent": version.parent,
        "round": version.round,
        "score": version.score,
        "scores": list(version.scores),
        "critique": version.critique,
        "template": version.template,
    }
