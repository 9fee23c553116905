"""Conversations that an adapter imitates before it is reinforced. `warm_up.py` takes the steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ..settings import WarmStartSettings

Messages = Sequence[dict[str, Any]]

_EVERY: Final = 16
"""Examples for each conversation that is no task."""


@dataclass(frozen=True)
class WarmStart:
    """Source of the conversations, and how they are imitated."""

    demonstration: Callable[[Mapping[str, Any]], Messages]
    """Returns the OpenAI messages of a task done well."""
    tools: Sequence[dict[str, Any]] = ()
    """Tools that the agent sends with every call."""
    settings: WarmStartSettings = field(default_factory=WarmStartSettings)
    besides: Sequence[Messages] = ()
    """Conversations that are no task: one is put before the first example, and one before each 16th after it."""

    def conversations(self, tasks: Sequence[Mapping[str, Any]]) -> list[Messages]:
        """Return the demonstrations of tasks with what is mixed in between."""
        found: list[Messages] = []
        for number, task in enumerate(tasks):
            if self.besides and number % _EVERY == 0:
                found.append(self.besides[number // _EVERY % len(self.besides)])
            found.append(self.demonstration(task))
        return found
