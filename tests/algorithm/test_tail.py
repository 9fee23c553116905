"""What the slowest rollouts of a step cost, told with each step."""

from __future__ import annotations

import asyncio

import pytest
from letters import TASKS, CountLetters, Kept, Letters, algorithm

from mini_agentic_rl import InMemoryLightningStore, LightningStore, Trainer
from mini_agentic_rl.algorithm.sampling import tail_of
from mini_agentic_rl.types import Rollout

BEFORE, ALONE = 0.3, 0.2


def _ended(*times: float) -> list[Rollout]:
    return [Rollout(rollout_id=str(n), input=None, start_time=0, end_time=time) for n, time in enumerate(times)]


@pytest.mark.parametrize(
    ("ends", "seconds"),
    [
        ([], 0),
        ([9.0], 0),  # no other one waited for it
        ([3.0, 1.0], 2),
        ([5.0, 5.0, 5.0], 0),
        ([*range(1, 8), 20], 13),
        ([*range(1, 16), 30], 16),  # an eighth of 16 is two: the last to end at 15 is among them
        ([*range(1, 16)], 1),
    ],
)
def test_the_tail_is_the_time_of_the_last_eighth_of_the_rollouts(ends, seconds):
    assert tail_of(_ended(*ends), 1000) == seconds


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_a_clock_that_is_set_makes_no_tail_longer_than_the_step(jump):
    assert 0 <= tail_of(_ended(1, 2, 3, 4 + jump), 4.5) <= 4.5


class Slow(Letters):
    """All rollouts take a while, and one begins a second while when all others have ended."""

    def __init__(self, store: LightningStore) -> None:
        super().__init__()
        self.store, self.started = store, 0

    async def rollout_async(self, task, resources, rollout):
        self.started += 1
        last = self.started == 8
        await super().rollout_async(task, resources, rollout)
        await asyncio.sleep(BEFORE)
        while last and len(await self.store.query_rollouts(status_in=["succeeded"])) < 7:
            await asyncio.sleep(0.01)
        await asyncio.sleep(ALONE if last else 0)


def test_a_step_tells_how_long_its_slowest_rollout_kept_it_waiting():
    store, kept = InMemoryLightningStore(), Kept()
    trained = algorithm(total_steps=1, tasks_per_step=2, samples_per_prompt=4)
    trainer = Trainer(algorithm=trained, hooks=[CountLetters()], n_runners=8, store=store, logger=kept)
    trainer.fit(Slow(store), TASKS[:2])
    (row,) = [row for row in kept.rows if "seconds/tail" in row]
    assert 0.9 * ALONE <= row["seconds/tail"] <= row["seconds/sampling"] - 0.9 * BEFORE
