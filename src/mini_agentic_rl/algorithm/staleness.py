"""Sampling ahead of learning (`max_staleness` above 0): groups wait in the store until they are learnt.

Follow a group through a run:

    fill         its task is drawn, and its rollouts go into the store's queue, each with the group's number in its
                 metadata; there are never more groups ahead than `max_staleness` + 1 batches
    (runners take rollouts whenever they have time, while the learner computes too)
    sample       all of its rollouts have ended; it is one of the oldest complete groups that make a batch, unless its
                 tokens are too old by now, and it is dropped
    learnt       its number leaves the run's progress, in the same turn in which the weights change
    finish_step  the new weights are published, and further groups are drawn

The progress, and with it each checkpoint, has the numbers of the groups that were drawn and not learnt. So a run that
was killed finds finished rollouts of these groups, and of those that were drawn after the checkpoint, by their
metadata; what is missing of a group is sampled again. Groups are learnt as they become complete, in any order.

The age of a token is the number of updates by which the weights that learn from it are newer than those that sampled
it. An update is what a step of the loop does to the weights, however many optimizer steps it takes; a step that changed
nothing is none.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..metrics import counted
from ..tokens import CompletionRecord
from . import sampling
from .groups import Group, groups_of
from .losses import Ints
from .rollouts import UNTRAINED_KEY, FinishedRollout, read_rollouts
from .sampling import SampledStep
from .state import RunState
from .tasks import TaskDraws

logger = logging.getLogger(__name__)

Versions = Mapping[str, int]
"""Version of each adapter."""

VERSION = "version"
"""Key in a rollout's metadata: the `Versions` when it was put into the queue."""
_LOOK_SECONDS = 5.0
"""Limit of one request to the store that waits for a group to end."""

_RUN, _NUMBER, _SAMPLE, _ROW = "run", "number", "sample", "row"
"""Keys in a rollout's metadata: the run, the number of its group there, its own in the group, and its task."""


@dataclass
class AheadGroup:
    """The rollouts of one task, from their way into the queue until they are learnt."""

    number: int
    """Place in the order in which the run draws."""
    row: int
    """Its task."""
    rollouts: list[str]
    """Ids."""
    restored: frozenset[str] = frozenset()
    """Ids of those that an earlier start of the run left in the store."""
    finished: list[FinishedRollout] = field(default_factory=list)
    """The rollouts, once all of them have ended."""
    has_signal: bool = True
    """True if it counts for a batch: with `dynamic_sampling` a complete one only does where it teaches something."""

    @property
    def complete(self) -> bool:
        """True once all of its rollouts have ended."""
        return bool(self.finished)


class AheadSampler:
    """Samples groups while the learner computes; at most `max_staleness` + 1 batches are ahead."""

    learning_share: float = 0.5
    """Share of the device's time that sampling has while the learner computes."""

    def __init__(self, run: RunState, has_signal: Callable[[Group], bool]) -> None:
        """`has_signal` returns True if a group can change an adapter."""
        self._run = run
        self._has_signal = has_signal
        self._tasks = TaskDraws(run.settings, run.dataset, run.progress.pass_rates)
        self._groups: dict[int, AheadGroup] = {}
        self._restored_at = dict(run.policy.model.versions)
        self._batch: Sequence[AheadGroup] = ()
        self._ages = np.empty(0, np.int64)
        self._too_old = 0

    async def open(self) -> None:
        """Publish the weights, restore the groups that an earlier start of the run has left, and begin to sample."""
        await self._run.served.publish()
        await self._restore()
        await self._fill()

    async def sample(self) -> SampledStep:
        """Wait for a batch of complete groups; return it as a step."""
        run = self._run
        self._batch = await self._take()
        finished = [f for group in self._batch for f in group.finished]
        self._ages = token_ages([f for f in finished if f.untrainable is None], run.progress.updates, run.models)
        return sampling.step_of(run, finished, [group.row for group in self._batch])

    def learnt(self, sampled: SampledStep) -> None:
        """Remove the batch from the queue and note the new versions, in the turn in which the weights change."""
        run = self._run
        self._tasks.rate(sampled.mean_rewards)
        for group in self._batch:
            self._forget(group)
        versions = {adapter: run.policy.model.versions[adapter] for adapter in run.policy.model.adapters}
        run.progress.updates = with_update(run.progress.updates, versions, run.settings.max_staleness + 2)

    async def finish_step(self) -> dict[str, float]:
        """Publish the new weights and draw further groups; return metrics about the ages of the tokens."""
        metrics = {
            "staleness/mean": float(np.mean(self._ages)) if self._ages.size else 0.0,
            "staleness/max": float(self._ages.max(initial=0)),
            "staleness/too_old": float(self._too_old),
            "staleness/waiting": float(self._waiting),
        }
        self._too_old = 0
        await self._run.served.publish()
        await self._fill()
        return metrics

    async def close(self) -> None:
        """Cancel the rollouts that were sampled ahead."""
        for group in list(self._groups.values()):
            for rollout_id in () if group.complete else group.rollouts:
                await self._run.store.update_rollout(rollout_id, status="cancelled")
            self._forget(group)

    @property
    def _waiting(self) -> int:
        return sum(group.complete for group in self._groups.values())

    async def _restore(self) -> None:
        run = self._run
        run.progress.run = run.progress.run or secrets.token_hex(8)
        self._restored_at = dict(run.policy.model.versions)
        left = {int(number): row for number, row in run.progress.pending.items()}
        ended: dict[int, dict[int, str]] = defaultdict(dict)  # ids by group and sample
        for rollout in await run.store.query_rollouts(status_in=["succeeded"]):
            metadata = rollout.metadata or {}
            if metadata.get(_RUN) != run.progress.run or UNTRAINED_KEY in metadata:
                continue
            number = int(metadata[_NUMBER])
            if number in left or number >= run.progress.drawn:  # drawn after the checkpoint
                left[number] = int(metadata[_ROW])
                ended[number][int(metadata[_SAMPLE])] = rollout.rollout_id
        run.progress.drawn = max([run.progress.drawn, *(number + 1 for number in left)])
        run.progress.pending = {str(number): row for number, row in left.items()}
        if ended:
            run.logger.note(f"found in the store: {counted(sum(map(len, ended.values())), 'rollout')} not learnt yet")
        for number, row in sorted(left.items()):
            ids = ended[number]
            restored = frozenset(ids.values())
            missing = [sample for sample in range(run.settings.samples_per_prompt) if sample not in ids]
            ids.update(zip(missing, await self._enqueue(number, row, missing), strict=True))
            self._groups[number] = AheadGroup(number, row, [ids[sample] for sample in sorted(ids)], restored)

    async def _fill(self) -> None:
        """Draw as many groups as may be ahead."""
        run, settings = self._run, self._run.settings
        batches = min(settings.max_staleness + 1, run.total_steps - run.progress.step)
        most = batches * settings.tasks_per_step
        rounds = settings.max_sampling_rounds if settings.dynamic_sampling else 1
        while sum(group.has_signal for group in self._groups.values()) < most and len(self._groups) < most * rounds:
            number = run.progress.drawn
            waiting = [group.row for group in self._groups.values()]
            (row,) = self._tasks.draw(1, step=number, first=number - len(waiting), drawn=waiting)
            # Before the store knows of it: a run that ends here draws it again.
            run.progress.drawn += 1
            run.progress.pending[str(number)] = row
            ids = await self._enqueue(number, row, range(settings.samples_per_prompt))
            self._groups[number] = AheadGroup(number, row, ids)

    async def _take(self) -> list[AheadGroup]:
        """Wait until there are enough complete groups for a batch; return the oldest ones, which stay in the queue
        until they are learnt."""
        last = time.monotonic()
        while True:
            await self._drop_old()
            batch = self._complete_batch()
            if batch is not None:
                return batch
            await self._fill()
            await self._wait_for_group()
            now = time.monotonic()
            if now - last >= sampling.SECONDS_BETWEEN_NOTES:
                last = now
                of = f"{self._waiting} of {counted(len(self._groups), 'group')} complete"
                self._run.logger.note(f"step {self._run.progress.step + 1}: {of}")

    def _forget(self, group: AheadGroup) -> None:
        del self._groups[group.number]
        del self._run.progress.pending[str(group.number)]

    def _complete_batch(self) -> list[AheadGroup] | None:
        settings = self._run.settings
        size, signals = settings.tasks_per_step, 0
        complete = sorted((g for g in self._groups.values() if g.complete), key=lambda group: group.number)
        for count, group in enumerate(complete, 1):
            signals += group.has_signal
            if signals == size or (settings.dynamic_sampling and count == size * settings.max_sampling_rounds):
                return complete[:count]
        return None

    async def _enqueue(self, number: int, row: int, samples: Sequence[int]) -> list[str]:
        """Put these samples of a group into the queue; return their ids."""
        run = self._run
        step, index = divmod(number, run.settings.tasks_per_step)
        versions = dict(run.policy.model.versions)
        shared: dict[str, Any] = {VERSION: versions, _RUN: run.progress.run, _NUMBER: number, _ROW: row}
        requests = [
            run.training_request(row, step, index, sample, **(shared | {_SAMPLE: sample})) for sample in samples
        ]
        return [rollout.rollout_id for rollout in await run.store.enqueue_many_rollouts(requests)] if requests else []

    async def _wait_for_group(self) -> None:
        """Wait until a group has ended, or for a while; read those that have."""
        store = self._run.store
        waits = {
            asyncio.ensure_future(store.wait_for_rollouts(rollout_ids=group.rollouts, timeout=_LOOK_SECONDS)): group
            for group in self._groups.values()
            if not group.complete
        }
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        for wait in done:
            if len(wait.result()) == len(waits[wait].rollouts):
                await self._read(waits[wait])

    async def _read(self, group: AheadGroup) -> None:
        run, settings = self._run, self._run.settings
        finished = await read_rollouts(run.store, group.rollouts, run.trained)
        if len(finished) < len(group.rollouts):
            logger.warning("group %d is not learnt: the store has lost rollouts of it", group.number)
            self._forget(group)
            return
        if settings.on_failure == "zero":
            finished = [sampling.as_zero(rollout) for rollout in finished]
        group.finished = [
            from_lost_weights(f, self._restored_at, run.models) if f.rollout.rollout_id in group.restored else f
            for f in finished
        ]
        if settings.dynamic_sampling:
            alone = settings.model_copy(update={"samples_per_prompt": len(finished)})
            groups = groups_of(finished, run.progress.step, run.models, alone)
            group.has_signal = any(
                self._has_signal(of_task) for per_adapter in groups.values() for of_task in per_adapter
            )

    async def _drop_old(self) -> None:
        """Drop complete groups with tokens that are too old for the next update, and log it."""
        run, most = self._run, self._run.settings.max_staleness
        for group in [group for group in self._groups.values() if group.complete]:
            if token_ages(group.finished, run.progress.updates, run.models).max(initial=0) <= most:
                continue
            reason = f"too old: sampled by weights of more than `max_staleness={most}` updates before"
            size = len(group.finished)
            if run.causes.add(reason, size):
                logger.warning("%s not trained: %s", counted(size, "rollout"), reason)
            run.progress.rollouts += size
            run.progress.count_untrained(reason, size)
            self._too_old += 1
            self._forget(group)
            for rollout in (finished.rollout for finished in group.finished):
                metadata = {**(rollout.metadata or {}), UNTRAINED_KEY: reason}
                await run.store.update_rollout(rollout.rollout_id, metadata=metadata)


def token_ages(finished: Sequence[FinishedRollout], updates: Sequence[Versions], models: Mapping[str, str]) -> Ints:
    """Return the age of each sampled token of some rollouts that is trained.

    Args:
        updates: versions after each of the last updates, the newest last.
        models: the adapter that learns from calls to each model, by the names of the models.
    """
    ages = [np.empty(0, np.int64)]
    for rollout in finished:
        oldest = (rollout.rollout.metadata or {}).get(VERSION, {})
        for record in rollout.records:
            adapter = models[record.model]
            later = np.unique([versions[adapter] for versions in updates])
            # A call that came through a proxy has no version of its own, and is not older than its rollout.
            versions_T = np.maximum(record.versions_T, oldest.get(adapter, 0))
            ages.append(later.size - np.searchsorted(later, versions_T, side="right"))
    return np.concatenate(ages)


def with_update(updates: Sequence[Versions], versions: Versions, kept: int) -> list[dict[str, int]]:
    """Return `updates` with the versions after a step, where it changed any; the last `kept` of them."""
    if updates and dict(updates[-1]) == dict(versions):
        return [dict(update) for update in updates]
    return [dict(update) for update in (*updates, versions)][-kept:]


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
