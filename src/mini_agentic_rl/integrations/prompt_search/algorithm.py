"""The base of the algorithms that search for a prompt. No weight is changed, and no torch is needed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from ...algorithm.base import Algorithm, AlgorithmContext
from ...errors import UserError
from ...gateway import resources_with_proxy
from ...types import Dataset, PromptTemplate
from .prompt_resource import find_prompt
from .run import PromptSearchRun, SearchInputs
from .settings import PromptSearchSettings
from .state import SearchState, StateT

if TYPE_CHECKING:
    from openai import AsyncOpenAI

SettingsT = TypeVar("SettingsT", bound=PromptSearchSettings)
TaskT = TypeVar("TaskT")


class PromptSearch(Algorithm, Generic[SettingsT, StateT, TaskT]):
    """Improves the prompt template among the initial resources.

    Args:
        async_openai_client: client of the model that writes prompts: `openai.AsyncOpenAI` on any OpenAI-compatible
            endpoint.
        settings: the search.
    """

    honours: ClassVar[frozenset[str]] = frozenset({"on_failure"})
    state_class: ClassVar[type[SearchState]]
    """Class of its state, whose `algorithm` names it in messages and files."""

    def __init__(self, async_openai_client: AsyncOpenAI, settings: SettingsT) -> None:
        super().__init__()
        self.client = async_openai_client
        self.settings: SettingsT = settings
        self._configuration = {"search": settings.model_dump(mode="json")}
        self._seed_prompt: PromptTemplate | None = None
        self._run: PromptSearchRun[SettingsT, StateT] | None = None

    @abstractmethod
    def new_run(self, inputs: SearchInputs) -> PromptSearchRun[SettingsT, StateT]:
        """Return the search, not begun."""

    @property
    def state(self) -> StateT | None:
        """State of the search; None before it has begun."""
        return None if self._run is None else self._run.state

    @property
    def configuration(self) -> Mapping[str, Any]:
        """Settings of the search, as they were given."""
        return self._configuration

    def rows_to_keep(self, checkpoint: Path | None) -> int | None:
        return 0 if checkpoint is None else self.state_class.read_logged(checkpoint)

    def bind(self, context: AlgorithmContext) -> None:
        if context.on_failure is not None:
            self.settings = self.settings.model_copy(update={"on_failure": context.on_failure})
        super().bind(context)

    def get_best_prompt(self) -> PromptTemplate:
        """Return the prompt with the highest mean reward on the validation tasks so far.

        Raises:
            ValueError: the algorithm has not run.
        """
        best = None if self.state is None else self.state.winner
        if best is None or self._seed_prompt is None:
            raise ValueError(f"no best prompt yet: {self.state_class.algorithm} has not run")
        return self._seed_prompt.model_copy(update={"template": best.template})

    @property
    def history(self) -> list[dict[str, Any]]:
        """Every prompt that the search keeps, in the order of making."""
        return [] if self.state is None else self.state.history

    @property
    def summary(self) -> Mapping[str, Any]:
        """`best_version`, `best_prompt` and its `score`, numbers of the search's own, `history`, `rejected` (attempts
        at a new prompt that came to nothing: reason to count), `unrewarded` (rollouts without a reward)."""
        return {} if self.state is None else self.state.summary

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Run the whole search; see the top of the algorithm's module.

        Raises:
            UserError: a data set or the prompt is missing, the checkpoint belongs to another run, or the endpoint of
                the model that writes prompts refuses every call.
        """
        title = self.state_class.algorithm
        if train_dataset is None or len(train_dataset) == 0:
            raise UserError(f"{title} needs `train_dataset`: the tasks on which a prompt is seen at work")
        if val_dataset is None or len(val_dataset) == 0:
            raise UserError(f"{title} needs `val_dataset`: the tasks on which prompts are compared")
        held = self.context.initial_resources
        name, self._seed_prompt = find_prompt(held, self.settings.prompt_name, title)
        async with resources_with_proxy(held, self.context.llm_proxy, self.context.store) as resources:
            inputs = SearchInputs(
                self.client, self.context, name, self._seed_prompt, resources, train_dataset, val_dataset
            )
            self._run = self.new_run(inputs)
            await self._run.all()
