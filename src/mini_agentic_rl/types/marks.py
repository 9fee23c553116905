"""Which of a rollout's agents are trained, said from inside the agent.

Types do no I/O: the room that writes spans registers here how a mark is recorded where the algorithm sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

TRAINABLE_AGENTS_KEY: Final = "trainable_agents"
"""Key in a rollout's metadata: the agents that are marked, in the order of their marks."""

_recorders: list[Callable[[str], None]] = []


def on_trainable_agent(recorder: Callable[[str], None]) -> None:
    """Call `recorder` with the name of every agent that is marked from now on."""
    if recorder not in _recorders:
        _recorders.append(recorder)


def mark_trainable_agent(metadata: dict[str, Any], agent_id: str) -> None:
    """Add an agent to the marks in `metadata`, and tell the recorders.

    Raises:
        ValueError: the name is empty or no string.
    """
    if not isinstance(agent_id, str) or not agent_id:
        raise ValueError(f"mark_agent_as_trainable takes the name of an agent, not {agent_id!r}")
    marked = trainable_agents_in(metadata)
    if agent_id not in marked:
        metadata[TRAINABLE_AGENTS_KEY] = [*marked, agent_id]
    for recorder in _recorders:
        recorder(agent_id)


def trainable_agents_in(metadata: Mapping[str, Any]) -> list[str]:
    """The agents that are marked in a rollout's metadata."""
    marked = metadata.get(TRAINABLE_AGENTS_KEY) or []
    return [marked] if isinstance(marked, str) else [str(name) for name in marked]
