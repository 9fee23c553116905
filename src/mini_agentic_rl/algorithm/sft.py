"""Supervised fine-tuning on the policy's learner: the warm-up before reinforcement learning, and imitation beside it.

Conversations are rendered by the gateway's own renderer into the tokens that the agent will see, and packed into the
same trees as rollouts, so a system prompt that all examples share is computed once per batch.

Reinforcement learning selects among rollouts. Where pass@8 equals pass@1, the rollouts of a task agree and there is
nothing to select; where pass@1 is high, there is little left to learn. A warm-up that goes on beyond that point raises
pass@1 and lowers what rewards reach from there (arXiv:2606.18487; arXiv:2602.01058). So some tasks are tried several
times during the warm-up, and it ends when the policy is ready (`Readiness`).

Observations (ECHO; Shrivastava et al. 2026, arXiv:2605.24517) are the messages of tools and users:

    L = L_policy + lambda * 1/N * sum over rollouts i of 1/|O_i| * sum over t in O_i of -log pi(o_t | all before it)

O_i are the tokens in the context of a rollout after its first call that it did not sample; lambda is the setting
`echo_coef` (0.05 in the paper). All N rollouts of a step count, those of groups with equal rewards too. A token is an
observation where a call continues an earlier one token by token: it is between the end of that one and the
beginning of the call's own output, so the markup of the chat template is part of it. A call that begins anew has none.

Demonstrations keep what was imitated before, and teach tasks that are never solved:

    L = L_policy + sft_coef * mean over the demonstrations' tokens of -log pi(token)

This is the combination of the two losses in one step of CHORD (Zhang et al. 2025, arXiv:2508.11408), with a constant
coefficient and without its weights of single tokens.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import torch

from ..gateway import ChatRenderer
from ..metrics import SELECTION_GAP, SFT, RunView, nothing_to_select, percent
from ..policy import Learner, LearnerSettings, LossInputs, LossOutputs
from ..tokens import CompletionRecord, TokenTree, pack
from ..types import Dataset
from .batch import Imitated
from .checkpoint import Checkpointing
from .groups import Group
from .measure import evaluate
from .rollouts import Evaluation
from .settings import GRPOSettings, WarmStart
from .state import RunState
from .tasks import derive_seed, kinds_of, task_order

logger = logging.getLogger(__name__)

_CHECKPOINT_EVERY: Final = 32
"""Optimizer steps between checkpoints: a minute or two of the embedded model on two cores."""
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


async def warm_up(run: RunState, checkpointing: Checkpointing) -> bool:
    """Imitate the conversations of the algorithm, adapter by adapter, from where an interruption has left off; return
    False if there are none."""
    if not run.warms_up:
        return False
    for adapter, warm_start in run.warm_starts.items():
        if warm_start.settings.examples > 0:
            await _warm_up_adapter(run, checkpointing, adapter, warm_start)
    return True


async def _warm_up_adapter(run: RunState, checkpointing: Checkpointing, adapter: str, warm_start: WarmStart) -> None:
    started = time.perf_counter()
    server, settings, progress, dataset = run.served.server, warm_start.settings, run.progress, run.dataset
    if server is None:
        raise RuntimeError("the policy is not served")
    # From the end of the first epoch, so that reinforcement learning begins with tasks not imitated.
    order = task_order(run.settings.seed, len(dataset), 0, kinds_of(dataset))
    conversations = warm_start.conversations([dataset[row] for row in order[-settings.examples :]])
    records = [server.renderer.conversation_to_records(messages, warm_start.tools) for messages in conversations]
    batches = [records[start : start + settings.batch_size] for start in range(0, len(records), settings.batch_size)]
    steps, taken = len(batches), progress.imitated.get(adapter, 0)
    if taken == steps or progress.readiness.get(adapter, {}).get("ready"):
        return
    options = LearnerSettings(
        **run.learner_settings.model_dump()
        | {
            "learning_rate": settings.learning_rate,
            "warmup_steps": min(settings.warmup_steps, max(0, steps - 1)),
            "schedule": settings.schedule,
            "total_steps": steps,
        }
    )
    learner = await run.policy.run_async(lambda: run.policy.learner(options, adapter))
    await checkpointing.begin_warm_up(learner, taken)
    readiness: Readiness | None = None
    phase = run.named(adapter, "SFT", " ")
    run.logger.phase(phase, steps)
    run.logger.advance(taken)

    def learn(batch: Sequence[Sequence[CompletionRecord]]) -> dict[str, float]:
        """Take a step and count it: an interruption may not come in between."""
        metrics = imitate(learner, TokenTree.of(batch))
        progress.imitated[adapter] = progress.imitated.get(adapter, 0) + 1
        return metrics

    for step, batch in enumerate(batches[taken:], start=taken + 1):
        metrics = await run.policy.learn_async(partial(learn, batch))
        run.logger.advance()
        run.log({run.named(adapter, f"{SFT}{name}"): value for name, value in metrics.items()}, step=step)
        progress.spend("sft", time.perf_counter() - started)
        is_due = step in (-(-steps // 2), -(-2 * steps // 3), steps) or step % _PROBE_EVERY == 0
        if settings.until == "ready" and is_due and steps >= _SHORTEST_PROBED:
            places = [(step * _PROBE_TASKS + index) % len(order) for index in range(_PROBE_TASKS)]
            readiness = await _probe(run, adapter, [dataset[order[place]] for place in places], step)
            if readiness.ends_warm_up or step == steps:
                break
            run.logger.phase(phase, steps)
            run.logger.advance(step)
        started = time.perf_counter()  # the probe counts its own time
        if step % _CHECKPOINT_EVERY == 0:
            await checkpointing.write()
    if readiness is not None:
        state = "ready for rewards" if readiness.is_ready else f"step {step} of the warm-up"
        run.logger.note(f"{state}: {readiness.line}")
        if readiness.warning is not None:
            logger.warning("%s", readiness.warning)
    checkpointing.warm_up = None


async def _probe(run: RunState, adapter: str, tasks: Sequence[Any], step: int) -> Readiness:
    """Try some tasks several times after a step of the warm-up; log the result and keep it in the run's progress."""
    started = time.perf_counter()
    name, seed = f"probe, step {step} of the warm-up", derive_seed(run.settings.seed, "probe", step)
    await run.served.publish()
    evaluation = await evaluate(
        run.context,
        run.settings,
        tasks,
        name=name,
        resources_id=run.train_resources,
        samples=TRIES,
        seed=seed,
        causes=run.causes,
    )
    readiness = readiness_of(evaluation)
    metrics = {"pass_1": readiness.pass_1, f"pass_{TRIES}": readiness.pass_n, "choice_entropy": readiness.entropy}
    run.log({run.named(adapter, f"{SFT}{name}"): value for name, value in metrics.items()}, step=step)
    run.progress.spend("probes", time.perf_counter() - started)
    run.progress.readiness[adapter] = asdict(readiness) | {"ready": readiness.ends_warm_up}
    return readiness


def imitate(learner: Learner, tree: TokenTree) -> dict[str, float]:
    """Take an optimizer step on the mean of -log p over the tokens of the assistant; return its metrics. On the torch
    thread."""
    packed = pack([tree])
    weights_S = torch.full((packed.term_count,), 1 / packed.term_count)
    metrics = learner.forward_backward(packed, negative_log_likelihood, LossInputs(weights_S))
    return metrics | learner.optim_step()


def negative_log_likelihood(inputs: LossInputs) -> LossOutputs:
    """Return the weighted sum of -log p, with the entropy as a metric."""
    weights_S = inputs.weights_S
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
    """Return the readiness that a measurement with several samples of each task shows."""
    tries, count = evaluation.samples, len(evaluation.rollouts)
    groups = [evaluation.rollouts[first : first + tries] for first in range(0, count, tries)]
    packed = pack([TokenTree.of(finished.records for finished in group) for group in groups])
    solved = evaluation.correct
    kinds = kinds_of([group[0].rollout.input for group in groups]) or []
    right_kinds = {kind for kind, right in zip(kinds, solved, strict=False) if right}
    return Readiness(
        pass_1=sum(solved) / max(1, count),
        pass_n=sum(right > 0 for right in solved) / max(1, len(solved)),
        tries=tries,
        tasks=len(solved),
        entropy=packed.choice_entropy(packed.term_count),
        never_right=sorted(set(kinds) - right_kinds),
    )


def observations(groups: Sequence[Group], coef: float) -> list[Imitated]:
    """Return the observations in the rollouts of `groups`, weighed for the loss."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    imitated: list[Imitated] = []
    for trajectory in trajectories:
        records = list(observed(trajectory.records))
        size = sum(record.output_ids.size for record in records)
        imitated += [Imitated(record, coef / (len(trajectories) * size), "echo") for record in records]
    return imitated


def observed(records: Sequence[CompletionRecord]) -> Iterator[CompletionRecord]:
    """Yield each observation of one rollout, as the output of a record. Choices that continue in the same words (of one
    request with n > 1) share theirs."""
    before: list[np.ndarray] = []
    seen: set[bytes] = set()
    for record in records:
        prompt = record.prompt_ids
        starts = [ids.size for ids in before if ids.size < prompt.size and np.array_equal(prompt[: ids.size], ids)]
        if starts and prompt.tobytes() not in seen:
            start = max(starts)
            observation = prompt[start:]
            yield CompletionRecord(prompt[:start], observation, np.zeros(observation.size, np.float32))
        seen.add(prompt.tobytes())
        before.append(np.concatenate([prompt, record.output_ids]))


def draw_demonstrations(
    warm_start: WarmStart,
    dataset: Dataset[Mapping[str, Any]],
    renderer: ChatRenderer,
    settings: GRPOSettings,
    step: int,
) -> list[Imitated]:
    """Return `sft_per_step` conversations about training tasks for an optimizer step, a record for each turn of the
    assistant, weighed for the loss. The draw depends on the seed and on `step` alone."""
    rng = np.random.default_rng(derive_seed(settings.seed, "demonstrations", step))
    rows = rng.choice(len(dataset), min(settings.sft_per_step, len(dataset)), replace=False)
    records = [
        record
        for row in rows
        for record in renderer.conversation_to_records(warm_start.demonstration(dataset[int(row)]), warm_start.tools)
    ]
    tokens = sum(record.trained_tokens for record in records)
    return [Imitated(record, settings.sft_coef / tokens, "sft") for record in records]
