"""Checkpoints to resume from exactly, the weights after each pass over the tasks, and those at the end.

A checkpoint holds everything that the rest of a run depends on: adapters, optimizers, the state of the objective,
random states and the `RunProgress`.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from ..errors import UserError
from ..files import read_json, reading
from ..gateway import save_kept_tokenizer
from ..policy import Learner, Policy, save_weights, write_state
from .base import ResultKind
from .state import Objective, RunProgress, RunState

_STATE = "state.json"
_OPTIMIZER = "optimizer.pt"
_WARM_UP = "warm_up.pt"
_RNG = "rng.pt"
_ADAPTER = "adapter"
_ADAPTERS = "adapters"
_ADVICE = "delete that checkpoint, and `resume` goes on from the one before"


def write_checkpoint(
    folder: Path, policy: Policy, objective: Objective, progress: RunProgress, warm_up: Learner | None
) -> None:
    """Write adapters, optimizers, the objective's own state, RNG and cursor. On the torch thread.

    Args:
        warm_up: the learner of the supervised warm-up, while that is under way.
    """
    policy.check_agreement()
    learners = objective.learners
    for name, learner in learners.items():
        weights, optimizer = _paths(folder, name, learners)
        save_weights(policy.model, weights, name)
        learner.save_state(optimizer)
    if warm_up is not None:
        warm_up.save_state(folder / _WARM_UP)
    objective.save_state(folder)
    version, words, position, has_gauss, gauss = np.random.get_state(legacy=True)
    write_state(
        folder / _RNG,
        {
            "torch": torch.get_rng_state(),
            "python": json.dumps(random.getstate()),
            "numpy": [str(version), torch.from_numpy(np.asarray(words).astype(np.int64)), position, has_gauss, gauss],
        },
    )
    (folder / _STATE).write_text(json.dumps(asdict(progress), indent=2), encoding="utf-8")


def read_progress(folder: Path) -> RunProgress:
    """Read the cursor of a checkpoint."""
    with reading(folder / _STATE, advice=_ADVICE):
        return RunProgress(**read_json(folder / _STATE))


def restore(folder: Path, policy: Policy, objective: Objective) -> None:
    """Read back weights, optimizers, the objective's own state and RNG of a checkpoint. On the torch thread.

    Raises:
        UserError: the checkpoint is of other adapters, or a file of it is damaged.
    """
    learners = objective.learners
    several = folder / _ADAPTERS
    saved = sorted(path.name for path in several.iterdir() if path.is_dir()) if several.is_dir() else []
    if saved != (sorted(learners) if len(learners) > 1 else []):
        raise UserError(
            f"the checkpoint {folder} is of {', '.join(saved) or 'one adapter'}: resume it with the same adapters"
        )
    restore_weights(folder, policy, learners)
    for name, learner in learners.items():
        learner.load_state(_paths(folder, name, learners)[1])
    with reading(folder, advice=_ADVICE):
        objective.load_state(folder)
    with reading(folder / _RNG, advice=_ADVICE):
        state = torch.load(folder / _RNG, weights_only=True)
        torch.set_rng_state(state["torch"])
        version, words, gauss = json.loads(state["python"])
        random.setstate((version, tuple(words), gauss))
        name, keys, position, has_gauss, cached = state["numpy"]
        np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))


def restore_weights(folder: Path, policy: Policy, learners: Mapping[str, Learner]) -> None:
    """Read back the weights of a checkpoint, and nothing else. On the torch thread."""
    for name in learners:
        policy.read_weights(_paths(folder, name, learners)[0], name)


def _paths(folder: Path, name: str, learners: Mapping[str, Learner]) -> tuple[Path, Path]:
    """Return the paths of the weights and of the optimizer of an adapter."""
    if len(learners) == 1:
        return folder / _ADAPTER, folder / _OPTIMIZER
    return folder / _ADAPTERS / name, folder / _ADAPTERS / f"{name}.{_OPTIMIZER}"


class Checkpointing:
    """Writes checkpoints of a run, and reads one back; without a place to keep them it does nothing."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._kept = run.context.checkpoints
        self._restored: Path | None = None
        self.warm_up: Learner | None = None
        """Optimizer of the warm-up under way, which checkpoints keep."""

    async def resume(self) -> None:
        """Go on from the latest checkpoint, if the trainer resumes and there is one."""
        run = self._run
        latest = None if self._kept is None else self._kept.latest_checkpoint()
        if not run.context.resume or latest is None:
            return
        folder = self._restored = latest[1]
        vars(run.progress).update(vars(read_progress(folder)))
        await run.policy.run_async(lambda: restore(folder, run.policy, run.objective))
        run.logger.note(f"resumed after {self._reached()}")

    async def begin_warm_up(self, learner: Learner, taken: int) -> None:
        """Keep the optimizer of a warm-up in the checkpoints from now on.

        Args:
            learner: if the checkpoint is of a warm-up under way, it takes the state that was saved there.
            taken: optimizer steps that the warm-up had taken then.
        """
        self.warm_up = learner
        folder = self._restored
        if taken and folder is not None:
            await self._run.policy.run_async(lambda: learner.load_state(folder / _WARM_UP))

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
            if run.policy.run(self._write):
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
            for name in policy.model.adapters:
                policy.save(folder / name, name)
        else:
            policy.save(folder, first)
        save_kept_tokenizer(self._run.served.tokenizer, folder)

    def _write(self) -> bool:
        """Write a checkpoint, unless the step under way has failed; return False then. On the torch thread."""
        run = self._run

        def write(folder: Path) -> None:
            write_checkpoint(folder, run.policy, run.objective, run.progress, self.warm_up)
            save_kept_tokenizer(run.served.tokenizer, folder)

        if not run.policy.is_whole:
            run.logger.note("the step under way has failed: the checkpoint before it stays the last")
            return False
        if self._kept is not None:
            best = run.progress.best_validation
            self._kept.save_checkpoint(run.progress.step, write, () if best is None else (best["step"],))
        return True
