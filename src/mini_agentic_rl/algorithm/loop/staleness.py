"""Ages of sampled tokens: by how many updates the weights that learn from them are newer than those that sampled them.

An update is what a step of the loop does to the weights, however many optimizer steps it takes (passes over a batch,
minibatches); a step that changed nothing is none. For one optimizer step an update, an age is a difference of versions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...tokens import CompletionRecord
from ..losses.base import Ints
from ..rollouts import FinishedRollout

Versions = Mapping[str, int]
"""Version of each adapter."""

VERSION = "version"
"""Key in a rollout's metadata: the `Versions` when it was put into the queue."""


def token_ages(finished: Sequence[FinishedRollout], updates: Sequence[Versions], models: Mapping[str, str]) -> Ints:
    """Return the age of each sampled token of some rollouts that is trained.

    Args:
        updates: versions after each of the last updates, the newest last.
        models: the adapter that learns from calls to each model, by the names of the models.
    """
    ages = [np.empty(0, np.int64)]
    for one in finished:
        oldest = (one.rollout.metadata or {}).get(VERSION, {})
        for record in one.records:
            adapter = models[record.model]
            later = np.unique([versions[adapter] for versions in updates])
            # A call that came through a proxy has no version of its own, and is not older than its rollout.
            versions_T = np.maximum(record.versions_T, oldest.get(adapter, 0))
            ages.append(later.size - np.searchsorted(later, versions_T, side="right"))
    return np.concatenate(ages)


def with_update(updates: Sequence[Versions], versions: Versions, kept: int) -> list[dict[str, int]]:
    """Return `updates` with the versions after a step, where it changed any; the last `kept` of them."""
    if updates and dict(updates[-1]) == dict(versions):
        return [dict(one) for one in updates]
    return [dict(one) for one in (*updates, versions)][-kept:]


def from_lost_weights(finished: FinishedRollout, now: Versions, models: Mapping[str, str]) -> FinishedRollout:
    """Return a rollout that was sampled by weights which a crash has undone, its versions mirrored at `now`: n updates
    ahead become n updates behind, since such weights are as far from those that learn now."""

    def turned(record: CompletionRecord) -> CompletionRecord:
        version, versions_T = now[models[record.model]], record.versions_T
        if versions_T.max(initial=version) <= version:
            return record
        return replace(record, versions=np.minimum(versions_T, 2 * version - versions_T))

    metadata = dict(finished.rollout.metadata or {})
    metadata[VERSION] = {name: min(at, 2 * now[name] - at) for name, at in metadata.get(VERSION, {}).items()}
    return replace(
        finished,
        rollout=finished.rollout.model_copy(update={"metadata": metadata}),
        records=[turned(record) for record in finished.records],
    )
