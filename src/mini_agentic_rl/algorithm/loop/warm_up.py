"""The supervised warm-up: each adapter imitates conversations until the policy is ready for rewards.

The conversations are rendered by the gateway's own renderer into the tokens that the agent will see, and packed into
the same trees as rollouts, so a system prompt that all examples share is computed once per batch.

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
from functools import partial
from typing import Any, Final

import torch

from ...gateway import ChatRenderer
from ...metrics import SELECTION_GAP, SFT, RunView, nothing_to_select, percent
from ...policy import Learner, LearnerSettings, LossInputs, LossOutputs, TermStreams
from ...tokens import TokenTree, pack
from ...types import Dataset
from ..measure import evaluate
from ..rollouts import Evaluation, FinishedRollout
from ..seeds import derive_seed, kinds_of, tasks_of_step
from ..settings import Messages, WarmStart, WarmStartSettings
from .checkpoint import Checkpointing
from .state import LoopState

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
_CHECKPOINT_EVERY: Final = 32
"""Optimizer steps between checkpoints: a minute or two of the embedded model on two cores."""


async def warm_up(run: LoopState, checkpointing: Checkpointing) -> bool:
    """Imitate the conversations of the algorithm, adapter by adapter, from where an interruption has left off; return
    False if there are none."""
    warm_starts = {
        adapter: start for adapter, start in run.algorithm.warm_starts.items() if start.settings.examples > 0
    }
    if not warm_starts or run.train_dataset is None:
        return False
    for adapter, warm_start in warm_starts.items():
        await _warm_up_adapter(run, checkpointing, adapter, warm_start, run.train_dataset)
    return True


async def _warm_up_adapter(
    run: LoopState, checkpointing: Checkpointing, adapter: str, warm_start: WarmStart, dataset: Dataset[Any]
) -> None:
    started = time.perf_counter()
    server, settings, imitated = run.served.server, warm_start.settings, run.progress.imitated
    if server is None:
        raise RuntimeError("the policy is not served")
    size = len(dataset)
    # From the end of the first epoch, so that reinforcement learning begins with tasks not imitated.
    order = tasks_of_step(run.settings.seed, size, 0, size, kinds_of(dataset))
    conversations = warm_start.conversations([dataset[row] for row in order[-settings.examples :]])
    trees = _trees(server.renderer, conversations, warm_start.tools, settings.batch_size)
    taken = imitated.get(adapter, 0)
    if taken == len(trees) or run.progress.readiness.get(adapter, {}).get("ready"):
        return
    options = _learner_settings(settings, run.learner_settings, len(trees))
    learner = await run.policy.run_async(lambda: run.policy.learner(options, adapter))
    await checkpointing.begin_warm_up(learner, taken)
    probe = _ReadinessProbe(run, adapter, [dataset[row] for row in order]) if settings.until == "ready" else None
    run.logger.phase(run.named(adapter, "SFT", " "), len(trees))
    run.logger.advance(taken)

    def learn(tree: TokenTree) -> dict[str, float]:
        """Take a step and count it: an interruption may not come in between."""
        metrics = _take_step(learner, tree)
        imitated[adapter] = imitated.get(adapter, 0) + 1
        return metrics

    for step, tree in enumerate(trees[taken:], start=taken + 1):
        metrics = await run.policy.learn_async(partial(learn, tree))
        run.logger.advance()
        run.log({run.named(adapter, f"{SFT}{name}"): value for name, value in metrics.items()}, step=step)
        run.progress.spend("sft", time.perf_counter() - started)
        if probe is not None and _is_probed(step, len(trees)):
            await probe.take(step)
            if probe.ends_warm_up:
                break
            run.logger.phase(run.named(adapter, "SFT", " "), len(trees))
            run.logger.advance(step)
        started = time.perf_counter()  # the probe counts its own time
        if step % _CHECKPOINT_EVERY == 0:
            await checkpointing.write()
    if probe is not None:
        probe.conclude()
    checkpointing.end_warm_up()


def _is_probed(step: int, steps: int) -> bool:
    """Return True if a warm-up of so many steps probes after this one."""
    is_planned = step in (-(-steps // 2), -(-2 * steps // 3), steps) or step % _PROBE_EVERY == 0
    return is_planned and steps >= _SHORTEST_PROBED


class _ReadinessProbe:
    """Tries some tasks several times."""

    def __init__(self, run: LoopState, adapter: str, tasks: Sequence[Any]) -> None:
        """`tasks` begin with those that are not imitated."""
        self._run = run
        self._adapter = adapter
        self._tasks = tasks
        self._readiness: Readiness | None = None
        self._step = 0

    async def take(self, step: int) -> None:
        """Probe after a step of the warm-up."""
        self._step = step
        self._readiness = await self._probe(step)
        self._run.progress.readiness[self._adapter] = asdict(self._readiness) | {"ready": self._readiness.ends_warm_up}

    @property
    def ends_warm_up(self) -> bool:
        """True if the latest probe found that no more examples are needed."""
        return self._readiness is not None and self._readiness.ends_warm_up

    def conclude(self) -> None:
        """Log whether the policy is ready for rewards, and what helps if it is not."""
        readiness = self._readiness
        if readiness is None:
            return
        state = "ready for rewards" if readiness.is_ready else f"step {self._step} of the warm-up"
        self._run.logger.note(f"{state}: {readiness.line}")
        if readiness.warning is not None:
            logger.warning("%s", readiness.warning)

    async def _probe(self, step: int) -> Readiness:
        run, started = self._run, time.perf_counter()
        first = step * _PROBE_TASKS
        tasks = [self._tasks[(first + index) % len(self._tasks)] for index in range(_PROBE_TASKS)]
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
        return readiness


def _trees(
    renderer: ChatRenderer, conversations: Sequence[Messages], tools: Sequence[dict[str, Any]], batch_size: int
) -> list[TokenTree]:
    """Return one tree for each optimizer step, with `batch_size` conversations in it."""
    trees = []
    for start in range(0, len(conversations), batch_size):
        tree = TokenTree()
        for index, messages in enumerate(conversations[start : start + batch_size]):
            for record in renderer.conversation_to_records(messages, tools):
                tree.insert(record, index)
        trees.append(tree)
    return trees


def _learner_settings(settings: WarmStartSettings, learner: LearnerSettings, steps: int) -> LearnerSettings:
    """Return the settings of the learner with the rate and the schedule of the warm-up, over its own steps."""
    changes = {
        "learning_rate": settings.learning_rate,
        "warmup_steps": min(settings.warmup_steps, max(0, steps - 1)),
        "schedule": settings.schedule,
        "total_steps": steps,
    }
    return LearnerSettings(**(learner.model_dump() | changes))


def _take_step(learner: Learner, tree: TokenTree) -> dict[str, float]:
    packed = pack([tree])
    weights_S = torch.full((packed.term_count,), 1 / packed.term_count)
    metrics = learner.forward_backward(packed, negative_log_likelihood, TermStreams(weights_S))
    return metrics | learner.optim_step()


def negative_log_likelihood(inputs: LossInputs) -> LossOutputs:
    """Return the mean of -log p over the tokens of the assistant."""
    weights_S = inputs.streams.weights_S
    return LossOutputs(-(weights_S * inputs.logprobs_S).sum(), {"entropy": (weights_S * inputs.entropy_S).sum()})


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
