"""Replay: rollouts that were right in an earlier step are trained on again, weighed by how likely they are today.

A right answer to a task that is mostly answered wrongly is rare, and one update uses little of it. Such groups (some
rollouts right, some wrong) stay in a buffer for some steps, and a few of them join the groups of each step: those with
the fewest right rollouts, and of these the ones replayed least. Only their right rollouts are trained; the wrong ones
stay in the mean that these are compared with. The ratio of the loss is to the policy that sampled them, whose
log-probabilities their records hold, so that it is the importance weight (Schulman et al. 2017, equation 6), clipped
as any other.

The buffer is in the run's progress, by the ids of rollouts; they themselves are read from the store, and so a resumed
run replays what it would have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...logging import CountedCauses
from ..base import AlgorithmContext
from ..rollouts import read_rollouts
from .adapters import by_adapter
from .credit import Credit
from .groups import Group, Trajectory
from .progress import Replayable, RunProgress
from .sampling import as_zero, trained_calls
from .settings import LoopSettings

_RIGHT = 1.0


async def replayed_groups(
    context: AlgorithmContext, settings: LoopSettings, models: Mapping[str, str], progress: RunProgress
) -> dict[str, list[Group]]:
    """Return the groups of earlier steps that join the next one, by adapter.

    Args:
        models: the adapter that learns from calls to each model, by the names of the models.
    """
    found: dict[str, list[Group]] = {}
    for adapter in dict.fromkeys(models.values()):
        for entry in chosen(progress.replay, adapter, settings.replay_groups):
            group = await _read(context, settings, models, entry)
            if group is not None:
                found.setdefault(adapter, []).append(group)
    return found


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
