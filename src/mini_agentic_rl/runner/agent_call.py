"""What travels between a runner and the process of its agent, besides spans and store calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..litagent import RolloutOutcome
from ..types import AttemptedRollout, NamedResources, Span


@dataclass(frozen=True)
class AgentCall:
    """What the agent is called with, and the trace that it goes on with."""

    rollout: AttemptedRollout
    resources: NamedResources
    trace_root: Any
    recorded: list[Span]


@dataclass(frozen=True)
class Left:
    """What a call left: its outcome, and the rollout's metadata as the agent has made them."""

    outcome: RolloutOutcome
    metadata: dict[str, Any]
