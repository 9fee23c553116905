"""The search of GEPA: select a prompt, try it, reflect, try its successor, and keep that where it is better.

Every draw follows from the seed and the iteration, and the state is written whole after each: a search that was killed
begins the unfinished iteration again.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from openai import AsyncOpenAI

from ...adapter import TraceToMessages
from ...errors import RunFailedError
from ...metrics import every
from ...types import Dataset, NamedResources, PromptTemplate, RolloutMode
from ..apo.critic import CriticError, Writer
from ..apo.trials import Trial, Trials, transcript
from ..base import AlgorithmContext
from ..seeds import derive_seed, tasks_of_step
from .pareto import pareto_weights, select
from .pool import Pool, PooledPrompt, read_pool, write_pool
from .reflection import reflection
from .settings import GEPASettings

logger = logging.getLogger(__name__)

_DRAWS = 2**32


class PoolSearcher(Protocol):
    """The part of GEPA that a run reads, and the pool that it keeps there."""

    pool: Pool | None

    @property
    def client(self) -> AsyncOpenAI: ...

    @property
    def settings(self) -> GEPASettings: ...

    @property
    def context(self) -> AlgorithmContext: ...

    @property
    def history(self) -> list[dict[str, Any]]: ...


@dataclass(frozen=True)
class _Template:
    """A prompt that is not in the pool."""

    name: str
    template: str


class PoolSearchRun:
    """One run of GEPA (algorithm 1 of the paper, for a system of one prompt)."""

    def __init__(
        self,
        algorithm: PoolSearcher,
        name: str,
        seed_prompt: PromptTemplate,
        resources: NamedResources,
        train_dataset: Dataset[Any],
        val_dataset: Dataset[Any],
    ) -> None:
        context = algorithm.context
        self.algorithm = algorithm
        self.settings = algorithm.settings
        self.context = context
        self.adapter = context.adapter if isinstance(context.adapter, TraceToMessages) else TraceToMessages()
        self.seed_prompt = seed_prompt
        self.writer = Writer(algorithm.client, self.settings, seed_prompt)
        self.trials = Trials(context.store, context.logger, self.settings, name, seed_prompt, resources)
        self.train_dataset = train_dataset
        self.val_dataset = val_dataset
        size = len(val_dataset)
        self.front = tasks_of_step(
            derive_seed(self.settings.seed, "front"), size, 0, min(self.settings.pareto_size, size)
        )
        self.pool = Pool()

    async def all(self) -> None:
        """Begin or go on, to the end."""
        await self._resume()
        self.algorithm.pool = self.pool
        if not self.pool.prompts:
            first = _Template("v0", self.seed_prompt.template)
            trials = await self._try(first, self.front, self.val_dataset, "val", "the first prompt")
            self.pool.prompts.append(PooledPrompt(first.name, first.template, None, _scores(trials)))
            self._log({})
            await self._checkpoint()
        while self.pool.rollouts < self.settings.max_rollouts:
            metrics = await self._iteration(self.pool.iteration + 1)
            self.pool.iteration += 1
            self._log(metrics)
            await self._checkpoint()
        if self.trials.unrewarded and not self.trials.rewarded:
            raise RunFailedError(every(self.trials.unrewarded.total(), "rollout"), self.trials.unrewarded)
        await self.trials.publish(self.pool.best)
        if self.context.checkpoints is not None:
            where = await asyncio.to_thread(self.context.checkpoints.save_result, "prompt", self._write_result)
            self.context.logger.note(f"the best prompt, {self.pool.best.name}, is in {where}")

    async def _iteration(self, number: int) -> dict[str, float]:
        """Make a successor of a prompt of the front, and keep it where it earns more on the same tasks."""
        pool, settings = self.pool, self.settings
        draw = derive_seed(settings.seed, "candidate", number) % _DRAWS / _DRAWS
        parent = pool.prompts[select([prompt.scores for prompt in pool.prompts], draw)]
        size = len(self.train_dataset)
        rows = tasks_of_step(
            derive_seed(settings.seed, "feedback"), size, number - 1, min(settings.minibatch_size, size)
        )
        purpose = f"iteration {number}"
        before = await self._try(parent, rows, self.train_dataset, "train", purpose)
        if all(trial.score >= settings.perfect_reward for trial in before):
            pool.reject("the whole minibatch earned the perfect reward")
            return {"reward/parent": _mean(before)}
        shown = [
            transcript(trial, index, self.adapter, settings.transcript_characters)
            for index, trial in enumerate(before, start=1)
        ]
        try:
            template = await self.writer.written(
                settings.reflection_model,
                "reflection_model",
                lambda rules: reflection(parent.template, shown, rules),
            )
        except CriticError as error:
            logger.warning("iteration %d came to nothing: %s", number, error)
            pool.reject(str(error))
            return {"reward/parent": _mean(before)}
        if any(prompt.template.strip() == template.strip() for prompt in pool.prompts):
            pool.reject("the new template repeats an earlier one")
            return {"reward/parent": _mean(before)}
        pool.tried += 1
        child = _Template(f"c{number}", template)
        after = await self._try(child, rows, self.train_dataset, "train", purpose)
        metrics = {"reward/parent": _mean(before), "reward/child": _mean(after)}
        if _mean(after) <= _mean(before):
            pool.reject("the successor earned no more on its minibatch")
            return metrics
        scores = _scores(await self._try(child, self.front, self.val_dataset, "val", f"{purpose}: validation"))
        made = PooledPrompt(f"v{len(pool.prompts)}", template, parent.name, scores, number)
        pool.prompts.append(made)
        if pool.best is made:
            self.context.logger.note(f"iteration {number}: {made.name} is the best prompt so far ({made.score:.3f})")
        return metrics

    async def _try(
        self,
        prompt: PooledPrompt | _Template,
        rows: Sequence[int],
        dataset: Dataset[Any],
        mode: RolloutMode,
        purpose: str,
    ) -> list[Trial]:
        (trials,) = await self.trials.run([(prompt, rows)], dataset, mode, purpose)
        self.pool.rollouts += len(trials)
        return trials

    async def _resume(self) -> None:
        checkpoints = self.context.checkpoints
        latest = checkpoints.latest_checkpoint() if checkpoints is not None else None
        if self.context.resume and latest is not None:
            self.pool = await asyncio.to_thread(read_pool, latest[1], self.seed_prompt.template)
            self.trials.unrewarded.update(self.pool.unrewarded)
            self.context.logger.note(f"resumed after iteration {self.pool.iteration}")

    async def _checkpoint(self) -> None:
        self.pool.unrewarded = dict(self.trials.unrewarded)
        checkpoints = self.context.checkpoints
        if checkpoints is not None:
            step = self.pool.iteration
            await asyncio.to_thread(checkpoints.save_checkpoint, step, lambda folder: write_pool(folder, self.pool))

    def _write_result(self, folder: Path) -> None:
        best = self.pool.best
        (folder / "best_prompt.txt").write_text(best.template, encoding="utf-8")
        result = {"prompt": self.trials.prompt(best).model_dump(), **asdict(best), "history": self.algorithm.history}
        (folder / "gepa.json").write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def _log(self, metrics: dict[str, float]) -> None:
        weights = pareto_weights([prompt.scores for prompt in self.pool.prompts])
        about = {
            "reward/best": self.pool.best.score,
            "pool/size": float(len(self.pool.prompts)),
            "pool/front": float(sum(weight > 0 for weight in weights)),
            "rollouts": float(self.pool.rollouts),
        }
        self.context.logger.log(metrics | about, step=self.pool.iteration)
        self.pool.logged += 1


def _scores(trials: Sequence[Trial]) -> list[float]:
    return [trial.score for trial in trials]


def _mean(trials: Sequence[Trial]) -> float:
    return sum(_scores(trials)) / len(trials)
