"""APO: automatic prompt optimisation by beam search over textual gradients (ProTeGi; Pryzant et al. 2023,
arXiv:2305.03495, algorithms 1 and 2).

    [try each prompt of the beam on some tasks -> criticise it -> rewrite it `branch_factor` times
     -> compare old and new on the same validation tasks -> keep the best `beam_width`] * `beam_rounds`

No weight is changed, and no torch is needed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ....compat import find_elsewhere
from ..algorithm import PromptSearch
from ..run import SearchInputs
from ..state import SearchState
from .beam import Search
from .search import SearchRun
from .settings import APOSettings

if TYPE_CHECKING:
    from openai import AsyncOpenAI

TaskT = TypeVar("TaskT")

__getattr__ = partial(find_elsewhere, __name__)


class APO(PromptSearch[APOSettings, Search, TaskT]):
    """Improves the prompt template among the initial resources.

    A prompt's score is the mean reward of its rollouts. A rollout that fails, takes too long or earns no reward counts
    as the setting `on_failure` says, is logged with its reason, and is counted in `summary`.

    A row of `history` is a version: `version`, `parent`, `round`, `score` on all validation tasks, `scores` as (round,
    score on that round's batch), `critique` and `template`. The `summary` also has `rounds`, and `seconds` by phase.

    `APO[Task](…)` says of which type the tasks are; that changes nothing.

    Args:
        async_openai_client: client of the critic: `openai.AsyncOpenAI` on any OpenAI-compatible endpoint.
        settings: the search; single settings may also be given by name (`beam_width=2`).

    Raises:
        pydantic.ValidationError: a setting is out of its range or has no such name.
    """

    state_class: ClassVar[type[SearchState]] = Search

    def __init__(
        self, async_openai_client: AsyncOpenAI, *, settings: APOSettings | None = None, **overrides: Any
    ) -> None:
        overrides.pop("_poml_trace", None)  # a switch of agent-lightning's, whose templates are another language's
        super().__init__(async_openai_client, APOSettings(**((settings or APOSettings()).model_dump() | overrides)))

    @property
    def search(self) -> Search | None:
        """State of the search; None before it has begun."""
        return self.state

    def new_run(self, inputs: SearchInputs) -> SearchRun:
        return SearchRun(self.settings, inputs)
