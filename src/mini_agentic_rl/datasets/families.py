"""Task families: the tasks and agents of recipes, by name.

A recipe registers each family as an entry point of the group `mini_agentic_rl.recipes`, so the core imports no recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import UserError
from ..plugins import load_plugin, plugin_names
from .formats import Example, Form
from .rows import SPLITS, DatasetError, TaskRows

TRANSFER = "transfer"
"""Split of tasks unlike those of training: other wordings, operations or kinds of questions."""
MATH = "math"
"""Agent of tasks that come from files."""
DEFAULT_SIZE = 1000
"""Rows of a generated data set if no size is given."""

SHORT_IMITATION: Mapping[str, Any] = {
    "loop.total_steps": 12,
    "loop.tasks_per_step": 12,
    "loop.tool_format": "auto",
    "lora.r": 8,
    "learner.warmup_steps": 0,
    "learner.learning_rate": 8e-4,
    "warm_start.examples": 32,
    "warm_start.until": "ready",
    "warm_start.learning_rate": 1e-3,
    "warm_start.batch_size": 4,
    "warm_start.schedule": "constant",
}
"""Default settings of a training: a short warm start by imitation, then reinforcement learning."""


@dataclass(frozen=True)
class ChatTools:
    """System prompt and tools of a chat with an agent."""

    system_prompt: str
    tools: Sequence[dict[str, Any]] = ()
    call: Callable[[str, str], str] | None = None
    """Runs a tool: (name, JSON arguments) → result as text."""
    max_turns: int = 1
    """Model calls for one user message."""


class TaskFamily:
    """Named tasks, and the agent that is trained on them."""

    name: ClassVar[str]
    agent: ClassVar[str] = ""
    """Name of the agent that is trained on these tasks; empty if it is `name`."""
    dataset: ClassVar[str] = ""
    """Name of the tasks that the agent `name` is trained on; empty if it is `name`."""
    is_open: ClassVar[bool] = False
    """True if the agent also takes tasks of other families and of files."""
    is_environment: ClassVar[bool] = False
    """True if the setting `env` takes the family's name."""
    levels: ClassVar[tuple[int, ...]] = ()
    """Levels of difficulty, from easy to hard; may be empty."""
    splits: ClassVar[tuple[str, ...]] = SPLITS
    measures_transfer: ClassVar[bool] = False
    """True if a training also evaluates the split `transfer`."""
    training_size: ClassVar[int | None] = DEFAULT_SIZE
    """Default number of training tasks; None for all."""
    max_new_tokens: ClassVar[int] = 128
    """Default token limit of one model call."""

    def __init__(self, options: str = "") -> None:
        """`options` is the text after the colon of a name, as in `arithmetic:1,2`; by default, levels.

        Raises:
            DatasetError: the family has no such levels.
        """
        parts = [part.strip() for part in options.split(",")] if options else []
        if parts and not self.levels:
            raise DatasetError(
                f"{self.name}:{options}: {self.name} has no levels; write {self.name}", setting="dataset"
            )
        if not set(parts) <= set(map(str, self.levels)):
            known = ", ".join(map(str, self.levels))
            raise DatasetError(f"{self.name}:{options}: the levels are {known}, as {self.name}:1,2", setting="dataset")
        self.chosen_levels: tuple[int, ...] | None = tuple(map(int, parts)) or None

    @classmethod
    def trained_agent(cls) -> str:
        """Return the name of the agent that is trained on these tasks."""
        return cls.agent or cls.name

    def levels_of(self, given: Sequence[int] | None) -> tuple[int, ...]:
        """Return the levels to draw from: `given`, else those of the name, else all.

        Raises:
            DatasetError: the family has no such levels, or `given` is empty.
        """
        wanted = tuple(given if given is not None else self.chosen_levels or self.levels)
        if not wanted or not set(wanted) <= set(self.levels):
            known = ", ".join(map(str, self.levels))
            raise DatasetError(f"{self.name} has the levels {known}, not {list(wanted)}", setting="difficulty")
        return wanted

    def tasks(
        self, split: str, size: int | None = None, seed: int = 0, levels: Sequence[int] | None = None
    ) -> TaskRows:
        """Return `size` tasks of one split, as rows with `id`, `question` and `answer`.

        Raises:
            DatasetError: an unknown split or level, a negative size, or a size above the number of tasks.
            MissingPackageError: the extra that the family needs is not installed.
        """
        tasks = self.dataset or self.name
        raise DatasetError(f"{self.name} is an agent; its tasks are called {tasks}", setting="dataset")

    def examples(self, rows: Sequence[Mapping[str, Any]], form: Form, seed: int = 0) -> list[Example]:
        """Return the training examples of one form for rows of these tasks.

        Raises:
            DatasetError: the family has no examples of this form.
        """
        raise DatasetError(f"{self.name} has no examples to imitate, only tasks", setting="dataset")

    def recipe(self) -> Any:
        """Return the `Recipe`: the agent, its reward and its demonstrations.

        Raises:
            MissingPackageError: the extra that the agent needs is not installed.
        """
        raise DatasetError(f"{self.name} has no agent", setting="agent")

    @classmethod
    def training_defaults(cls, dataset: str, *, mixes: bool, whole_steps: bool) -> Mapping[str, Any]:
        """Return the default settings of a training of this agent, by path, such as `lora.r`.

        Args:
            dataset: name of the tasks.
            mixes: True if steps of reinforcement learning may also imitate.
            whole_steps: True if sampling waits for learning, so that failed tasks of a step can be tried again.
        """
        return SHORT_IMITATION

    @classmethod
    def train_config(cls) -> type[Any] | None:
        """Return a subclass of `TrainConfig` with this agent's settings; None without any."""
        return None

    def chat(self) -> ChatTools | None:
        """Return the system prompt and tools of a chat; None if the agent cannot chat."""
        return None


def family_type(name: str) -> type[TaskFamily] | None:
    """Return the class of a family by its name, with or without options after a colon; None if there is none.

    Raises:
        UserError: the recipe is not installed.
    """
    family: type[TaskFamily] | None = load_plugin("recipes", name.partition(":")[0], setting=None)
    return family


def find_family(name: str) -> TaskFamily | None:
    """Return a family by its name, with or without options after a colon; None if there is none.

    Raises:
        UserError: the recipe is not installed, or the options are not valid.
    """
    family = family_type(name)
    return None if family is None else family(name.partition(":")[2])


def task_names() -> list[str]:
    """Return the names of the families with tasks; those that cannot be imported are left out."""
    return [name for name, family in _every_family().items() if family.dataset in ("", name)]


def agent_names() -> list[str]:
    """Return the names of the agents; those that cannot be imported are left out."""
    return [name for name, family in _every_family().items() if family.agent in ("", name)]


def _every_family() -> dict[str, type[TaskFamily]]:
    families: dict[str, type[TaskFamily]] = {}
    for name in plugin_names("recipes"):
        with suppress(UserError):
            family = family_type(name)
            if family is not None:
                families[name] = family
    return families
