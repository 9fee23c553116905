"""All that a run keeps: checkpoints to go on from, the weights after each pass over the tasks, those at the end."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ...gateway import save_kept_tokenizer
from ...policy import Learner
from ..base import ResultKind
from .objective import Objective
from .progress import read_progress, restore, restore_warm_up, save_adapters, write_checkpoint
from .training_run import TrainingRun
from .validation import best_of


class Checkpointing:
    """Writes checkpoints of a run, and reads one back; without a place to keep them it does nothing."""

    def __init__(self, run: TrainingRun, objective: Objective) -> None:
        self._run = run
        self._objective = objective
        self._kept = run.context.checkpoints
        self._restored: Path | None = None
        self._warm_up: Learner | None = None

    async def resume(self) -> bool:
        """Go on from the latest checkpoint, where that is asked for and there is one; True then."""
        run = self._run
        latest = None if self._kept is None else self._kept.latest_checkpoint()
        if not run.context.resume or latest is None:
            return False
        folder = self._restored = latest[1]
        run.algorithm.progress = read_progress(folder)
        await run.policy.run_async(lambda: restore(folder, run.policy, self._objective))
        run.logger.note(f"resumed after {self._reached()}")
        return True

    async def begin_warm_up(self, learner: Learner, taken: int) -> None:
        """Keep the optimizer of a warm-up in the checkpoints from now on.

        Args:
            learner: takes the state that the checkpoint has of it, if that is of a warm-up under way.
            taken: Optimizer steps that the warm-up had taken then.
        """
        self._warm_up = learner
        folder = self._restored
        if taken and folder is not None:
            await self._run.policy.run_async(lambda: restore_warm_up(folder, learner))

    def end_warm_up(self) -> None:
        """Leave the optimizer of the warm-up out of the checkpoints from now on."""
        self._warm_up = None

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
        elif run.progress.warmed_up or run.progress.imitated:
            run.logger.note("interrupted: writing a checkpoint")
            # Only now is it known which step that was.
            if run.policy.run(self._write_if_whole):
                run.logger.note(f"`resume` goes on after {self._reached()}")

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

    def _reached(self) -> str:
        progress = self._run.progress
        if progress.warmed_up:
            return f"step {progress.step}"
        return f"step {sum(progress.imitated.values())} of the warm-up"

    def _write_result(self, folder: Path) -> None:
        policy = self._run.policy
        first, *others = policy.model.adapters
        if others:
            save_adapters(folder, policy)
        else:
            policy.save(folder, first)
        save_kept_tokenizer(self._run.served.tokenizer, folder)

    def _write_if_whole(self) -> bool:
        if self._run.policy.is_whole:
            self._write()
            return True
        self._run.logger.note("the step under way has failed: the checkpoint before it stays the last")
        return False

    def _write(self) -> None:
        run = self._run

        def write(folder: Path) -> None:
            write_checkpoint(folder, run.policy, self._objective, run.progress, self._warm_up)
            save_kept_tokenizer(run.served.tokenizer, folder)

        if self._kept is not None:
            best = best_of(run.progress.validation)
            self._kept.save_checkpoint(run.progress.step, write, () if best is None else (best["step"],))
