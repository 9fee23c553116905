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

from ...algorithm.base import Algorithm, AlgorithmContext
from ...compat import find_elsewhere
from ...errors import UserError
from ...files import read_json, reading
from ...gateway import resources_with_proxy
from ...types import Dataset, NamedResources, PromptTemplate
from .search import SearchRun
from .state import STATE_FILE, APOSettings, Search, Version

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["APO", "APOSettings", "Version"]

TaskT = TypeVar("TaskT")

__getattr__ = partial(find_elsewhere, __name__)


class APO(Algorithm, Generic[TaskT]):
    """Improves the prompt template among the initial resources.

    A prompt's score is the mean reward of its rollouts. A rollout that fails, takes too long or earns no reward counts
    according to `on_failure`, is logged with its reason, and is counted in `summary`.

    A row of `history` is a version: `version`, `parent`, `round`, `score` on all validation tasks, `scores` as (round,
    score on that round's batch), `critique` and `template`. The `summary` also has `rounds`, and `seconds` by phase.

    `APO[Task](…)` annotates the type of the tasks.

    Args:
        async_openai_client: client of the critic: `openai.AsyncOpenAI` on any OpenAI-compatible endpoint.
        settings: settings of the search; single ones may also be given by name (`beam_width=2`).

    Raises:
        pydantic.ValidationError: a setting is out of its range or has no such name.
    """

    honours: ClassVar[frozenset[str]] = frozenset({"on_failure"})

    def __init__(
        self, async_openai_client: AsyncOpenAI, *, settings: APOSettings | None = None, **overrides: Any
    ) -> None:
        super().__init__()
        overrides.pop("_poml_trace", None)  # a switch of agent-lightning for POML templates, which are not used here
        self.client = async_openai_client
        self.settings = APOSettings(**((settings or APOSettings()).model_dump() | overrides))
        self._configuration = {"search": self.settings.model_dump(mode="json")}
        self._seed_prompt: PromptTemplate | None = None
        self._run: SearchRun | None = None

    @property
    def search(self) -> Search | None:
        """State of the search; None before it has begun."""
        return None if self._run is None else self._run.state

    @property
    def configuration(self) -> Mapping[str, Any]:
        """Settings of the search, as they were given."""
        return self._configuration

    def rows_to_keep(self, checkpoint: Path | None) -> int | None:
        if checkpoint is None:
            return 0
        with reading(checkpoint / STATE_FILE):
            return int(read_json(checkpoint / STATE_FILE)["logged"])

    def bind(self, context: AlgorithmContext) -> None:
        if context.on_failure is not None:
            self.settings = self.settings.model_copy(update={"on_failure": context.on_failure})
        super().bind(context)

    def get_best_prompt(self) -> PromptTemplate:
        """Return the prompt with the highest mean reward on the validation tasks so far.

        Raises:
            ValueError: the algorithm has not run.
        """
        if self.search is None or self._seed_prompt is None:
            raise ValueError("no best prompt yet: APO has not run")
        return self._seed_prompt.model_copy(update={"template": self.search.winner.template})

    @property
    def history(self) -> list[dict[str, Any]]:
        """All prompts of the search, in the order of creation."""
        return [] if self.search is None else self.search.history

    @property
    def summary(self) -> Mapping[str, Any]:
        """`best_version`, `best_prompt` and its `score`, `rounds`, `seconds`, `history`, `rejected` (count of
        rejected prompts by reason), `unrewarded` (rollouts without a reward)."""
        return {} if self.search is None else self.search.summary

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Run the whole search; see the top of the module.

        Raises:
            UserError: a data set or the prompt is missing, the checkpoint belongs to another run, or the endpoint of
                the critic refuses every call.
        """
        if train_dataset is None or len(train_dataset) == 0:
            raise UserError("APO needs `train_dataset`: the tasks that prompts are tried on for the critic")
        if val_dataset is None or len(val_dataset) == 0:
            raise UserError("APO needs `val_dataset`: the tasks on which prompts are compared")
        held = self.context.initial_resources
        name, self._seed_prompt = find_prompt(held, self.settings.prompt_name)
        async with resources_with_proxy(held, self.context.llm_proxy, self.context.store) as resources:
            self._run = SearchRun(self.client, self.settings, self.context, name, self._seed_prompt, resources)
            await self._run.run(train_dataset, val_dataset)


def find_prompt(held: NamedResources, wanted: str | None) -> tuple[str, PromptTemplate]:
    """Return the prompt and its name.

    Args:
        held: the initial resources.
        wanted: its name; None if there is only one.

    Raises:
        UserError: there is none of that name, or there are several and no name.
    """
    prompts = {name: value for name, value in held.items() if isinstance(value, PromptTemplate)}
    listed = f"the prompt templates {', '.join(prompts)}" if prompts else "no prompt template"
    if wanted is not None:
        if wanted not in prompts:
            raise UserError(f"{wanted!r}: `initial_resources` hold {listed} under that name", setting="prompt_name")
        return wanted, prompts[wanted]
    if len(prompts) != 1:
        raise UserError(
            f"`initial_resources` hold {listed}: "
            + ("choose one with APO(prompt_name=…)" if prompts else "give Trainer(initial_resources={…}) one")
        )
    return next(iter(prompts.items()))
