"""Failed tasks that are tried again with the first calls of an expert.

If every rollout of a task fails, an update has nothing to select. A rollout that begins with the first calls of an
expert and samples only the rest succeeds more often (BREAD; Zhang et al. 2025, arXiv:2506.17211; AdaBack; Amani et al.
2025, arXiv:2506.18110). The expert is an earlier right rollout of the same task, or else the task's demonstration. All
calls but its last are given at first. Once most of such rollouts are right, tasks of that kind (their field `kind`; a
task without one is a kind of its own) get one call less. The gateway answers the given calls token by token, so that no
agent has to change, and marks their tokens as forced: they are context and never trained.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ..semconv import EXPERT_PREFIX
from ..tokens import CompletionRecord
from .groups import Group, groups_of
from .rollouts import count_reasons, read_rollouts, run_rollouts
from .sampling import SampledStep, as_zero
from .state import RunState

_RIGHT: Final = 1.0
_MOSTLY: Final = 0.5
"""Share of right rollouts above which a kind of task gets one call less."""


async def with_prefixed_groups(run: RunState, step: SampledStep) -> SampledStep:
    """Return a step with further groups: of each task that all rollouts failed, rollouts that begin as an expert did.

    The failed groups stay, for the metrics; they have no signal.
    """
    adapter = next(iter(step.groups))
    groups = list(zip(step.rows, step.groups[adapter], strict=True))
    for row, group in groups:
        right = [trajectory for trajectory in group.trajectories if trajectory.reward >= _RIGHT]
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


async def _expert_calls(run: RunState, adapter: str, row: int) -> list[CompletionRecord]:
    """Return the calls that rollouts of a task begin with; none where no expert is known, or it makes a single call."""
    known = run.progress.solved.get(str(row))
    records: Sequence[CompletionRecord] = ()
    if known is not None:
        rollouts = await read_rollouts(run.store, [known], run.trained)
        records = rollouts[0].records if rollouts else ()
    start, server = run.warm_starts.get(adapter), run.served.server
    if not records and start is not None and server is not None:
        records = server.renderer.conversation_to_records(start.demonstration(run.dataset[row]), start.tools)
    most = len(records) - 1
    return list(records[: min(most, run.progress.prefix_calls.get(_kind(run, row), most))]) if most > 0 else []


async def _sample(run: RunState, step: int, given: dict[int, list[CompletionRecord]]) -> list[Group]:
    settings, server = run.settings, run.served.server
    if server is None:
        raise RuntimeError("the policy is not served")
    names = {row: f"{run.progress.run}{step}/{row}" for row in given}
    for row, name in names.items():
        server.expert_prefixes[name] = given[row]
    requests = [
        run.training_request(row, step, index, sample, kind="prefix", **{EXPERT_PREFIX: name})
        for index, (row, name) in enumerate(names.items())
        for sample in range(settings.samples_per_prompt)
    ]
    try:
        finished = await run_rollouts(run.store, requests, lambda _: None, run.trained)
    finally:
        for name in names.values():
            del server.expert_prefixes[name]
    if settings.on_failure == "zero":
        finished = [as_zero(rollout) for rollout in finished]
    count_reasons(finished, lambda rollout: rollout.untrainable, "not trained", run.causes)
    groups = groups_of(finished, step, run.models, settings)
    return [replace(group, is_prefixed=True) for group in next(iter(groups.values()))]


def _adapt_lengths(run: RunState, given: Mapping[int, int], groups: Sequence[Group]) -> None:
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


def _kind(run: RunState, row: int) -> str:
    task = run.dataset[row]
    return str(task["kind"]) if isinstance(task, Mapping) and "kind" in task else str(row)
