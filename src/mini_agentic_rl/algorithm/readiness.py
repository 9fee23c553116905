"""When a supervised warm-up ends: some tasks are tried several times, until rewards have something to select from.

Reinforcement learning selects among rollouts. Where pass@8 equals pass@1, the rollouts of a task agree and there is
nothing to select; where pass@1 is high, there is little left to learn. A warm-up that goes on beyond that point raises
pass@1 and lowers what rewards reach from there (arXiv:2606.18487; arXiv:2602.01058). So some tasks are tried several
times during the warm-up, and it ends when the policy is ready.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from ..metrics import SELECTION_GAP, SFT, RunView, nothing_to_select, percent
from ..tokens import TokenTree, pack
from .measure import evaluate
from .rollouts import Evaluation, FinishedRollout
from .seeds import derive_seed, kinds_of
from .state import RunState

logger = logging.getLogger(__name__)

TRIES: Final = 8
"""Tries at each task of a probe."""
LEAST, MOST = 0.15, 0.5
"""Bounds of pass@1 of a policy that is ready."""
_PROBE_TASKS: Final = 8
"""With fewer, chance decides whether several tries seem to do better than one."""
_SHORTEST_PROBED: Final = 6
"""Optimizer steps of the shortest warm-up that is probed: a probe takes as long as four or five."""
_PROBE_EVERY: Final = 32
"""Optimizer steps between probes; there is one after half of the steps, after two thirds, and after the last as well.
Not chosen by the time that they take: a run would then depend on the speed of the machine."""


def is_probed(step: int, steps: int) -> bool:
    """Return True if a warm-up of so many steps probes after this one."""
    is_planned = step in (-(-steps // 2), -(-2 * steps // 3), steps) or step % _PROBE_EVERY == 0
    return is_planned and steps >= _SHORTEST_PROBED


class ReadinessProbe:
    """Tries some tasks several times."""

    def __init__(self, run: RunState, adapter: str, tasks: Sequence[Any]) -> None:
        """`tasks` begin with those that are not imitated."""
        self._run = run
        self._adapter = adapter
        self._tasks = tasks
        self._readiness: Readiness | None = None
        self._step = 0

    async def ends_warm_up(self, step: int) -> bool:
        """Probe after a step of the warm-up; return True if no more examples are needed."""
        run, started = self._run, time.perf_counter()
        tasks = [self._tasks[(step * _PROBE_TASKS + index) % len(self._tasks)] for index in range(_PROBE_TASKS)]
        await run.served.publish()
        evaluation = await evaluate(
            run.store,
            tasks,
            name=f"probe, step {step} of the warm-up",
            resources_id=run.train_resources,
            logger_=run.logger,
            samples=TRIES,
            seed=derive_seed(run.settings.seed, "probe", step),
            rollout_timeout=run.settings.rollout_timeout,
            causes=run.causes,
        )
        readiness = readiness_of(evaluation)
        metrics = {
            "pass_1": readiness.pass_1,
            f"pass_{TRIES}": readiness.pass_n,
            "choice_entropy": readiness.entropy,
        }
        run.log({run.named(self._adapter, f"{SFT}{name}"): value for name, value in metrics.items()}, step=step)
        run.progress.spend("probes", time.perf_counter() - started)
        run.progress.readiness[self._adapter] = asdict(readiness) | {"ready": readiness.ends_warm_up}
        self._step, self._readiness = step, readiness
        return readiness.ends_warm_up

    def conclude(self) -> None:
        """Log whether the policy is ready for rewards, and what helps if it is not."""
        readiness = self._readiness
        if readiness is None:
            return
        state = "ready for rewards" if readiness.is_ready else f"step {self._step} of the warm-up"
        self._run.logger.note(f"{state}: {readiness.line}")
        if readiness.warning is not None:
            logger.warning("%s", readiness.warning)


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
        """The figures in words."""
        text = f"{percent(self.pass_1, 0)} of single tries, {percent(self.pass_n, 0)} of {self.tries}"
        spread = f"; entropy {self.entropy:.2f} nats where tries diverge" if self.entropy else ""
        return f"{text} ({self.tasks} tasks{spread})"

    @property
    def warning(self) -> str | None:
        """Reason for which rewards have little to select from, and what helps; None if they have enough."""
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
