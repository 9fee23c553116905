"""All that a run keeps: checkpoints to go on from, the weights after each pass over the tasks, those at the end."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ..base import ResultKind
from .objective import Objective
from .progress import read_progress, restore, save_adapters, write_checkpoint
from .training_run import TrainingRun
from .validation import best_of


class Checkpointing:
    """Writes checkpoints of a run, and reads one back; without a place to keep them it does nothing."""

    def __init__(self, run: TrainingRun, objective: Objective) -> None:
        self._run = run
        self._objective = objective
        self._kept = run.context.checkpoints

    async def resume(self) -> bool:
        """Go on from the latest checkpoint, where that is asked for and there is one; True then."""
        run = self._run
        latest = None if self._kept is None else self._kept.latest_checkpoint()
        if not run.context.resume or latest is None:
            return False
        _, folder = latest
        run.algorithm.progress = read_progress(folder)
        await run.policy.run_async(lambda: restore(folder, run.policy, self._objective))
        run.logger.note(f"resumed after step {run.progress.step}")
        return True

    async def write(self) -> None:
        """Write a checkpoint."""
        if self._kept is not None:
            await self._run.policy.run_async(self._write)

    def interrupted(self) -> None:
        """Write a checkpoint of a run that is being ended, before anything else is done; or say that nothing is kept.

        It blocks: the event loop may be ending too.
        """
        run = self._run
        if self._kept is None:
            run.logger.note("interrupted: nothing is kept, because the trainer has no output_dir")
        elif run.progress.warmed_up:  # a warm-up is short: it is begun again
            run.logger.note(f"interrupted: writing a checkpoint; `resume` goes on after step {run.progress.step}")
            run.policy.run(self._write_if_whole)

    async def save_epoch(self, epoch: int) -> None:
        """Keep what was trained after so many passes over the tasks."""

        def write(folder: Path) -> None:
            self._write_result(folder)
            self._run.served.tokenizer.save_pretrained(folder)

        if self._kept is not None:
            await asyncio.to_thread(self._kept.save_epoch, epoch, write)

    async def save_result(self) -> None:
        """Keep what was trained."""
        kind: ResultKind = "adapters" if len(self._run.policy.model.adapters) > 1 else "adapter"
        if self._kept is not None:
            await asyncio.to_thread(self._kept.save_result, kind, self._write_result)

    def _write_result(self, folder: Path) -> None:
        policy = self._run.policy
        first, *others = policy.model.adapters
        if others:
            save_adapters(folder, policy)
        else:
            policy.save(folder, first)

    def _write_if_whole(self) -> None:
        if self._run.policy.is_whole:
            self._write()
        else:
            self._run.logger.note("the step under way has failed: the checkpoint before it stays the last")

    def _write(self) -> None:
        run = self._run
        if self._kept is not None:
            best = best_of(run.progress.validation)
            self._kept.save_checkpoint(
                run.progress.step,
                lambda folder: write_checkpoint(folder, run.policy, self._objective, run.progress),
                () if best is None else (best["step"],),
            )
