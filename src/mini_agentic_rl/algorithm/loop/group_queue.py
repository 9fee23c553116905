"""Groups that are sampled ahead of learning. They wait in the store, and a run that goes on finds them there.

Follow a group through a run:

    fill      its task is drawn, and its rollouts go into the store's queue, each with the group's number in its
              metadata; there are never more groups ahead than `max_staleness` + 1 batches
    (runners take rollouts whenever they have time, while the learner computes too)
    take      all of its rollouts have ended; it is one of the oldest complete groups that make a batch, unless its
              tokens are too old by now, and it is dropped
    learnt    its number leaves the run's progress, in the same turn in which the weights change

The progress, and with it each checkpoint, has the numbers of the groups that were drawn and not learnt. So a run that
was killed finds finished rollouts of these groups, and of those that were drawn after the checkpoint, by their
metadata; what is missing of a group is sampled again.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ...logging import CountedCauses
from ...metrics import counted
from ...types import Rollout
from ..rollouts import UNTRAINED_KEY, FinishedRollout, read_rollouts
from ..seeds import derive_seed
from . import sampling
from .adapters import by_adapter
from .groups import Group
from .staleness import VERSION, from_lost_weights, token_ages
from .step_tasks import StepTasks
from .training_run import TrainingRun

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 5.0
"""At most so long one question to the store waits for a group to end."""

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
    found: frozenset[str] = frozenset()
    """Those that an earlier start of the run left in the store."""
    finished: list[FinishedRollout] = field(default_factory=list)
    """The rollouts, once all of them have ended."""
    has_signal: bool = True
    """True if it counts for a batch: with `dynamic_sampling` a complete one only does where it teaches something."""

    @property
    def complete(self) -> bool:
        """True once all of its rollouts have ended."""
        return bool(self.finished)


class GroupQueue:
    """The groups that were drawn and not learnt, bounded by `max_staleness`."""

    def __init__(self, run: TrainingRun, has_signal: Callable[[Group], bool]) -> None:
        """
        Args:
            has_signal: tells if a group teaches an adapter anything.
        """
        self._run = run
        self._has_signal = has_signal
        self._models = run.served.trained_models
        self._tasks = StepTasks(run.settings)
        self._groups: dict[int, AheadGroup] = {}
        self._restored_at = dict(run.policy.model.versions)
        self.too_old = 0
        """Groups that were dropped since somebody set this to 0."""

    @property
    def waiting(self) -> int:
        """Number of complete groups."""
        return sum(group.complete for group in self._groups.values())

    async def restore(self) -> None:
        """Take up the groups that an earlier start of the run has left."""
        run = self._run
        run.progress.run = run.progress.run or secrets.token_hex(8)
        self._restored_at = dict(run.policy.model.versions)
        left = {int(number): row for number, row in run.progress.pending.items()}
        ended: dict[tuple[int, int], Rollout] = {}
        for rollout in await run.store.query_rollouts(status_in=["succeeded"]):
            metadata = rollout.metadata or {}
            if metadata.get(_RUN) != run.progress.run or UNTRAINED_KEY in metadata:
                continue
            number = int(metadata[_NUMBER])
            if number in left or number >= run.progress.drawn:  # drawn after the checkpoint
                left[number] = int(metadata[_ROW])
                ended[number, int(metadata[_SAMPLE])] = rollout
        run.progress.drawn = max([run.progress.drawn, *(number + 1 for number in left)])
        run.progress.pending = {str(number): row for number, row in left.items()}
        for number, row in sorted(left.items()):
            there = {sample: one for (of, sample), one in ended.items() if of == number}
            missing = [sample for sample in range(run.settings.samples_per_prompt) if sample not in there]
            again = await self._enqueue(number, row, missing)
            ids = {
                sample: rollout.rollout_id for sample, rollout in [*there.items(), *zip(missing, again, strict=True)]
            }
            found = frozenset(rollout.rollout_id for rollout in there.values())
            self._groups[number] = AheadGroup(number, row, [ids[sample] for sample in sorted(ids)], found)
        if ended:
            run.logger.note(f"found in the store: {counted(len(ended), 'rollout')} not learnt yet")

    async def fill(self) -> None:
        """Draw as many groups as may be ahead."""
        run, settings = self._run, self._run.settings
        batches = min(settings.max_staleness + 1, run.total_steps - run.progress.step)
        most = batches * settings.tasks_per_step
        rounds = settings.max_sampling_rounds if settings.dynamic_sampling else 1
        while sum(group.has_signal for group in self._groups.values()) < most and len(self._groups) < most * rounds:
            number = run.progress.drawn
            waiting = [group.row for group in self._groups.values()]
            row = self._tasks.next_row(run.dataset, run.progress, number, waiting)
            # Before the store knows of it: a run that ends here draws it again.
            run.progress.drawn += 1
            run.progress.pending[str(number)] = row
            rollouts = await self._enqueue(number, row, range(settings.samples_per_prompt))
            self._groups[number] = AheadGroup(number, row, [rollout.rollout_id for rollout in rollouts])

    async def take(self) -> list[AheadGroup]:
        """Wait until there are enough complete groups for a batch; return the oldest ones, which stay in the queue
        until they are `learnt`."""
        last = time.monotonic()
        while True:
            await self._drop_old()
            batch = self._batch()
            if batch is not None:
                return batch
            await self.fill()
            await self._wait_for_one()
            now = time.monotonic()
            if now - last >= sampling.SECONDS_BETWEEN_NOTES:
                last = now
                of = f"{self.waiting} of {counted(len(self._groups), 'group')} complete"
                self._run.logger.note(f"step {self._run.progress.step + 1}: {of}")

    def learnt(self, batch: Sequence[AheadGroup], mean_rewards: Mapping[int, float]) -> None:
        """Let a batch go, in the turn in which its weights change; rewards are those of its tasks, by row."""
        self._tasks.rate(self._run.progress, mean_rewards)
        for group in batch:
            self._forget(group)

    async def close(self) -> None:
        """Cancel all that is left."""
        for group in list(self._groups.values()):
            for rollout_id in () if group.complete else group.rollouts:
                await self._run.store.update_rollout(rollout_id, status="cancelled")
            self._forget(group)

    def _forget(self, group: AheadGroup) -> None:
        del self._groups[group.number]
        del self._run.progress.pending[str(group.number)]

    def _batch(self) -> list[AheadGroup] | None:
        settings = self._run.settings
        size, signals = settings.tasks_per_step, 0
        complete = sorted((g for g in self._groups.values() if g.complete), key=lambda group: group.number)
        for count, group in enumerate(complete, 1):
            signals += group.has_signal
            if signals == size or (settings.dynamic_sampling and count == size * settings.max_sampling_rounds):
                return complete[:count]
        return None

    async def _enqueue(self, number: int, row: int, samples: Sequence[int]) -> Sequence[Rollout]:
        run, settings = self._run, self._run.settings
        step, index = divmod(number, settings.tasks_per_step)
        versions = dict(run.policy.model.versions)
        requests = [
            sampling.training_request(
                settings,
                run.dataset[row],
                run.train_resources,
                step=step,
                group=f"{step}/{index}",
                seed=derive_seed(settings.seed, "rollout", step, index, sample),
                **{VERSION: versions, _RUN: run.progress.run, _NUMBER: number, _SAMPLE: sample, _ROW: row},
            )
            for sample in samples
        ]
        return await run.store.enqueue_many_rollouts(requests) if requests else []

    async def _wait_for_one(self) -> None:
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
        found = await read_rollouts(run.store, group.rollouts, sampling.trained_calls(run.context, self._models))
        if len(found) < len(group.rollouts):
            logger.warning("group %d is not learnt: the store has lost rollouts of it", group.number)
            self._forget(group)
            return
        if settings.on_failure == "zero":
            found = [sampling.as_zero(one) for one in found]
        group.finished = [
            from_lost_weights(one, self._restored_at, self._models) if one.rollout.rollout_id in group.found else one
            for one in found
        ]
        if settings.dynamic_sampling:
            alone = settings.model_copy(update={"samples_per_prompt": len(found)})
            groups, _, _ = by_adapter(found, run.progress.step, self._models, alone, CountedCauses())
            group.has_signal = any(self._has_signal(one) for of_adapter in groups.values() for one in of_adapter)

    async def _drop_old(self) -> None:
        """Drop complete groups with tokens that the next update would be too new for, and say so."""
        run, most = self._run, self._run.settings.max_staleness
        for group in [group for group in self._groups.values() if group.complete]:
            if token_ages(group.finished, run.progress.updates, self._models).max(initial=0) <= most:
                continue
            reason = f"too old: sampled by weights of more than `max_staleness={most}` updates before"
            size = len(group.finished)
            if run.causes.add(reason, size):
                logger.warning("%s not trained: %s", counted(size, "rollout"), reason)
            run.progress.rollouts += size
            run.progress.untrained[reason] = run.progress.untrained.get(reason, 0) + size
            self.too_old += 1
            self._forget(group)
            for one in group.finished:
                metadata = {**(one.rollout.metadata or {}), UNTRAINED_KEY: reason}
                await run.store.update_rollout(one.rollout.rollout_id, metadata=metadata)
