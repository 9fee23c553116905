"""Readiness of a policy for rewards: single tries often fail, and one of several tries succeeds.

Reinforcement learning selects among rollouts. Where pass@8 equals pass@1, the rollouts of a task agree and there is
nothing to select; where pass@1 is high, there is little left to learn. A warm-up that goes on beyond that point raises
pass@1 and lowers what rewards reach from there (arXiv:2606.18487; arXiv:2602.01058).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ...metrics import SELECTION_GAP, RunView, nothing_to_select, percent
from ...tokens import TokenTree, pack
from ..rollouts import Evaluation, FinishedRollout
from ..seeds import kinds_of

TRIES: Final = 8
"""Tries at each task."""
LEAST, MOST = 0.15, 0.5
"""Bounds of pass@1."""


@dataclass(frozen=True)
class Readiness:
    """Success of a policy at some tasks, each tried several times at temperature 1."""

    pass_1: float
    """Share of all tries that are right."""
    pass_n: float
    """Share of the tasks that at least one try solves."""
    tries: int
    """Tries at each task."""
    tasks: int
    """Number of tasks."""
    entropy: float
    """Mean entropy in nats at the tokens where tries of a task diverge; 0 where none do."""
    never_right: Sequence[str] = ()
    """Kinds of tasks (their field `kind`) of which no try was right."""

    @property
    def is_ready(self) -> bool:
        """True if rewards can select: pass@1 from 15 to 50 %, pass@8 at least 25 points above it, and a right try of
        every kind of task.

        Rewards for the other kinds alone teach one way of answering for all, and the kind that was never right stays
        so.
        """
        return LEAST <= self.pass_1 <= MOST and self.pass_n >= self.pass_1 + SELECTION_GAP and not self.never_right

    @property
    def ends_warm_up(self) -> bool:
        """True if the policy is ready, or most single tries are right: more imitation leaves less to select from."""
        return self.is_ready or self.pass_1 > MOST

    @property
    def line(self) -> str:
        """Return the figures in words."""
        text = f"{percent(self.pass_1, 0)} of single tries, {percent(self.pass_n, 0)} of {self.tries}"
        spread = f"; entropy {self.entropy:.2f} nats where tries diverge" if self.entropy else ""
        return f"{text} ({self.tasks} tasks{spread})"

    @property
    def warning(self) -> str | None:
        """Return why rewards have little to select from, and what helps; None where they have enough."""
        finding = nothing_to_select(RunView((), probes=[(self.pass_1, self.pass_n)]))
        if finding is not None:
            return f"{finding.head}: {finding.body}"
        if self.never_right:
            kinds = ", ".join(self.never_right)
            return (
                f"No try at tasks of the kind {kinds} was right, so rewards cannot teach it: imitate more examples "
                "(`sft_examples`)"
            )
        return None


def readiness_of(evaluation: Evaluation) -> Readiness:
    """Return what a measurement with several samples of each task says."""
    tries, count = evaluation.samples, len(evaluation.rollouts)
    groups = [evaluation.rollouts[first : first + tries] for first in range(0, count, tries)]
    solved = evaluation.correct
    kinds = kinds_of([group[0].rollout.input for group in groups]) or []
    right_kinds = {kind for kind, right in zip(kinds, solved, strict=False) if right}
    return Readiness(
        pass_1=sum(solved) / max(1, count),
        pass_n=sum(right > 0 for right in solved) / max(1, len(solved)),
        tries=tries,
        tasks=len(solved),
        entropy=_choice_entropy(groups),
        never_right=sorted(set(kinds) - right_kinds),
    )


def _choice_entropy(groups: Sequence[Sequence[FinishedRollout]]) -> float:
    trees = []
    for group in groups:
        tree = TokenTree()
        for number, finished in enumerate(group):
            for record in finished.records:
                tree.insert(record, number)
        trees.append(tree)
    packed = pack(trees)
    return packed.choice_entropy(packed.term_count)
