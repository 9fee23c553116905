"""One rollout as `rollouts show` tells it: facts, attempts, rewards by component, conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from ..types import Rollout, Span
from .conversation_text import conversation_texts
from .tables import as_json, attempt_table, rollout_facts


@dataclass(frozen=True)
class ToldRollout:
    """A rollout, and what its spans say of it."""

    rollout: Rollout
    attempts: Sequence[Mapping[str, Any]]
    reward: float | None
    """Final reward of the latest attempt."""
    components: Mapping[str, float]
    """That reward by its names."""
    conversations: Sequence[Mapping[str, Any]]

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        facts = {"attempts": list(self.attempts), "reward": self.reward, "rewards": dict(self.components)}
        return {**as_json(self.rollout), **facts, "conversations": list(self.conversations)}

    def print(self, console: Console) -> None:
        """Print it for a person."""
        console.print(rollout_facts(self.rollout, self.reward, self.components), attempt_table(self.attempts))
        ids = [str(attempt["attempt_id"]) for attempt in self.attempts]
        for part in conversation_texts(self.conversations, ids):
            console.print(part)


def told_rollout(
    rollout: Rollout, attempts: Sequence[Mapping[str, Any]], spans: Sequence[Span], *, shown: int | None
) -> ToldRollout:
    """Return what is told of a rollout.

    Args:
        attempts: as JSON values, with the number of their spans, oldest first.
        spans: of all attempts.
        shown: characters of one message that are told; None leaves the conversations out.
    """
    from ..adapter import conversations
    from ..emitter import find_final_reward, find_reward_spans, get_rewards_from_span

    latest = [span for span in spans if attempts and span.attempt_id == attempts[-1]["attempt_id"]]
    given = find_reward_spans(latest)
    components = {one.name: one.value for one in get_rewards_from_span(given[-1])} if given else {}
    said = [] if shown is None else conversations(spans, shown=shown)
    return ToldRollout(rollout, attempts, find_final_reward(latest), components, said)
