"""Groups that join those of a step: rare right rollouts of earlier steps, and failed tasks begun as an expert did.

Replay. A right answer to a task that is mostly answered wrongly is rare, and one update uses little of it. Groups of
which some rollouts are right and some wrong stay in a buffer for some steps, and a few of them join the groups of each
step: those with the fewest right rollouts, and of these the ones replayed least. Only their right rollouts are trained;
the wrong ones stay in the group's mean. The ratio of the loss is to the policy that sampled them, whose
log-probabilities their records hold, so it is the importance weight (Schulman et al. 2017, equation 6), clipped as any
other. The buffer is in the run's progress, by the ids of rollouts; they are read from the store, so a resumed run
replays the same.

Expert prefix. If every rollout of a task fails, an update has nothing to select. A rollout that begins with the first
calls of an expert and samples only the rest succeeds more often (BREAD; Zhang et al. 2025, arXiv:2506.17211; AdaBack;
Amani et al. 2025, arXiv:2506.18110). The expert is an earlier right rollout of the same task, or else the task's
demonstration. All calls but its last are given at first. Once most of such rollouts are right, tasks of that kind
(their field `kind`; a task without one is a kind of its own) get one call less. The gateway answers the given calls
token by token, so that no agent has to change, and marks their tokens as forced: they are context and never trained.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ...logging import CountedCauses
from ...semconv import EXPERT_PREFIX
from ...tokens import CompletionRecord
from ..base import AlgorithmContext
from ..rollouts import read_rollouts, run_rollouts
from ..seeds import derive_seed
from ..settings import LoopSettings
from .groups import Credit, Group, Trajectory, by_adapter
from .sampling import SampledStep, as_zero, trained_calls, training_request
from .state import LoopState, Replayable, RunProgress

_RIGHT: Final = 1.0
_MOSTLY: Final = 0.5
"""Share of right rollouts above which a kind of task gets one call less."""


async def replayed_groups(
    context: AlgorithmContext, settings: LoopSettings, models: Mapping[str, str], progress: RunProgress
) -> dict[str, list[Group]]:
    """Return the groups of earlier steps that join the next one, by adapter.

    Args:
        models: the adapter that learns from calls to each model, by the names of the models.
    """
    by_adapter_name: dict[str, list[Group]] = {}
    for adapter in dict.fromkeys(models.values()):
        for entry in chosen(progress.replay, adapter, settings.replay_groups):
            group = await _read(context, settings, models, entry)
            if group is not None:
                by_adapter_name.setdefault(adapter, []).append(group)
    return by_adapter_name


async def _read(
    context: AlgorithmContext, settings: LoopSettings, models: Mapping[str, str], entry: Replayable
) -> Group | None:
    """Return a group as it was sampled, with its right rollouts to be trained; None where the store has lost it."""
    finished = await read_rollouts(context.store, entry["rollouts"], trained_calls(context, models))
    if len(finished) < len(entry["rollouts"]):
        return None
    if settings.on_failure == "zero":
        finished = [as_zero(one) for one in finished]
    alone = settings.model_copy(update={"samples_per_prompt": len(finished)})
    groups, _, _ = by_adapter(finished, entry["step"], models, alone, CountedCauses())
    (group,) = groups[entry["adapter"]]
    trajectories = [_right_only(trajectory) for trajectory in group.trajectories]
    return replace(group, task_id=f"replayed/{group.task_id}", trajectories=trajectories)


def remember(progress: RunProgress, groups: Mapping[str, Sequence[Group]], settings: LoopSettings) -> None:
    """Put the groups of a step, whose number is that of the progress, into the buffer, and let old ones go."""
    if settings.replay_groups == 0:
        return
    for adapter in groups:
        for entry in chosen(progress.replay, adapter, settings.replay_groups):  # they have just been replayed
            entry["uses"] += 1
    kept = [entry for entry in progress.replay if progress.step - entry["step"] < settings.replay_steps]
    for adapter, own in groups.items():
        for group in own:
            right = int((group.rewards >= _RIGHT).sum())
            if 0 < right < len(group.trajectories) and not group.is_prefixed:
                ids = [trajectory.rollout_id for trajectory in group.trajectories]
                share = right / len(ids)
                kept.append({"step": progress.step, "adapter": adapter, "rollouts": ids, "right": share, "uses": 0})
    progress.replay = kept


def chosen(buffer: Sequence[Replayable], adapter: str, count: int) -> list[Replayable]:
    """Return the groups that are replayed next: those with the fewest right rollouts among the least used."""
    own = [entry for entry in buffer if entry["adapter"] == adapter]
    return sorted(own, key=lambda entry: (entry["uses"], entry["right"], entry["step"]))[:count]


def _right_only(trajectory: Trajectory) -> Trajectory:
    """Return a trajectory that is trained where it was right, and is only compared with where it was not."""
    if trajectory.reward >= _RIGHT:
        return trajectory
    credit = trajectory.credited
    return replace(trajectory, credit=Credit(credit.values_C, np.full_like(credit.column_R, -1)))


async def with_prefixed_groups(run: LoopState, step: SampledStep) -> SampledStep:
    """Return a step with further groups: of each task that all rollouts failed, rollouts that begin as an expert did.

    The failed groups stay, for the metrics; they have no signal.
    """
    adapter = next(iter(step.groups))
    groups = list(zip(step.rows, step.groups[adapter], strict=True))
    for row, group in groups:
        right = [one for one in group.trajectories if one.reward >= _RIGHT]
        if right:
            run.progress.solved[str(row)] = right[0].rollout_id
    failed = [(row, group) for row, group in groups if group.trajectories and group.rewards.max() < _RIGHT]
    given = {row: calls for row, _ in failed if (calls := await _expert_calls(run, adapter, row))}
    if not given:
        return step
    again = await _sample(run, run.progress.step, given)
    metrics = {"prefix/groups": float(len(again))}
    _adapt_lengths(run, {row: len(calls) for row, calls in given.items()}, again)
    rewards = np.concatenate([group.rewards for group in again])
    if rewards.size:
        metrics["prefix/reward"] = float(rewards.mean())
    return replace(
        step,
        groups={**step.groups, adapter: [*step.groups[adapter], *again]},
        metrics={**step.metrics, **metrics},
    )


async def _expert_calls(run: LoopState, adapter: str, row: int) -> list[CompletionRecord]:
    """Return the calls that rollouts of a task begin with; none where no expert is known, or it makes a single call."""
    known = run.progress.solved.get(str(row))
    records: Sequence[CompletionRecord] = ()
    if known is not None:
        rollouts = await read_rollouts(run.store, [known], trained_calls(run.context, run.served.trained_models))
        records = rollouts[0].records if rollouts else ()
    start, server = run.algorithm.warm_starts.get(adapter), run.served.server
    if not records and start is not None and server is not None:
        records = server.renderer.conversation_to_records(start.demonstration(run.dataset[row]), start.tools)
    most = len(records) - 1
    return list(records[: min(most, run.progress.prefix_calls.get(_kind(run, row), most))]) if most > 0 else []


async def _sample(run: LoopState, step: int, given: dict[int, list[CompletionRecord]]) -> list[Group]:
    settings, server = run.settings, run.served.server
    if server is None:
        raise RuntimeError("the policy is not served")
    names = {row: f"{run.progress.run}{step}/{row}" for row in given}
    for row, name in names.items():
        server.expert_prefixes[name] = given[row]
    requests = [
        training_request(
            settings,
            run.dataset[row],
            run.train_resources,
            step=step,
            group=f"{step}/prefix/{index}",
            seed=derive_seed(settings.seed, "prefix", step, index, sample),
            **{EXPERT_PREFIX: name},
        )
        for index, (row, name) in enumerate(names.items())
        for sample in range(settings.samples_per_prompt)
    ]
    models = run.served.trained_models
    try:
        finished = await run_rollouts(run.store, requests, lambda _: None, trained_calls(run.context, models))
    finally:
        for name in names.values():
            del server.expert_prefixes[name]
    groups, _, _ = by_adapter(finished, step, models, settings, run.causes)
    return [replace(group, is_prefixed=True) for group in next(iter(groups.values()))]


def _adapt_lengths(run: LoopState, given: Mapping[int, int], groups: Sequence[Group]) -> None:
    """Give each kind of task one call less from now on if most rollouts with these calls were right, one more if none.

    Args:
        given: number of calls that the rollouts of each group began with, by the row of its task.
    """
    tried: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for (row, calls), group in zip(given.items(), groups, strict=True):
        if group.trajectories:
            tried[_kind(run, row)].append((calls, float((group.rewards >= _RIGHT).mean())))
    for kind, tries in tried.items():
        calls, right = max(calls for calls, _ in tries), sum(right for _, right in tries) / len(tries)
        run.progress.prefix_calls[kind] = max(1, calls - 1) if right > _MOSTLY else calls + 1 if right == 0 else calls


def _kind(run: LoopState, row: int) -> str:
    task = run.dataset[row]
    return str(task["kind"]) if isinstance(task, Mapping) and "kind" in task else str(row)
