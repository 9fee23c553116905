"""A recipe, as a job takes it: the agent, the hooks that score it, and its demonstrations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..litagent import LitAgent
from ..types import Hook


@dataclass(frozen=True)
class Demonstrations:
    """Demonstrations of tasks done well, for training by imitation."""

    demonstrate: Callable[[Mapping[str, Any]], list[dict[str, Any]]]
    """Returns the OpenAI messages of a task done well."""
    tools: Callable[[Mapping[str, Any]], Sequence[dict[str, Any]]]
    """Returns the tools that the agent sends with every call about a task."""
    can_show: Callable[[Mapping[str, Any]], bool]
    """Returns True for a task that says how it is done."""
    besides: Sequence[list[dict[str, Any]]] = ()
    """Conversations that are no task, to be mixed in: what a model should still be able to say."""


@dataclass(frozen=True)
class Recipe:
    """An agent, the hooks that score it, and how its tasks are demonstrated."""

    agent: LitAgent[Any]
    hooks: Sequence[Hook] = ()
    demonstrations: Demonstrations | None = None
    """None where nobody wrote any."""
