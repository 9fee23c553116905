"""What a job needs to know of an agent beside the agent itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..litagent import LitAgent
from ..types import Hook


@dataclass(frozen=True)
class Imitation:
    """How a task is done well."""

    demonstration: Callable[[Mapping[str, Any]], list[dict[str, Any]]]
    """The OpenAI messages of a task done well."""
    tools: Sequence[dict[str, Any]]
    """What the agent sends as `tools`."""
    needs: str
    """The field that a task must have for it."""


@dataclass(frozen=True)
class AgentKit:
    """An agent, the hooks that score it, and how its task is demonstrated."""

    agent: LitAgent[Any]
    hooks: Sequence[Hook]
    imitation: Imitation | None = None
    """None where nobody wrote that down."""
