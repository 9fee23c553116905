"""The search of GEPA: select a prompt, try it, reflect, try its successor, and keep that where it is better."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...types import Dataset, RolloutMode
from ..prompt_search.run import PromptSearchRun, SearchInputs
from ..prompt_search.trials import Trial, transcript
from ..prompt_search.writer import CriticError, Writer
from ..seeds import derive_seed, tasks_of_step
from .pareto import select
from .pool import Pool, PooledPrompt
from .reflection import reflection
from .settings import GEPASettings

logger = logging.getLogger(__name__)

_DRAWS = 2**32


@dataclass(frozen=True)
class _Template:
    """A prompt that is not in the pool."""

    name: str
    template: str


class PoolSearchRun(PromptSearchRun[GEPASettings, Pool]):
    """One run of GEPA (algorithm 1 of the paper, for a system of one prompt)."""

    def __init__(self, settings: GEPASettings, inputs: SearchInputs) -> None:
        super().__init__(settings, inputs, Pool())
        self.writer = Writer(inputs.client, settings, inputs.seed_prompt)
        size = len(inputs.val_dataset)
        self.front = tasks_of_step(derive_seed(settings.seed, "front"), size, 0, min(settings.pareto_size, size))

    @property
    def has_begun(self) -> bool:
        return bool(self.state.prompts)

    @property
    def has_ended(self) -> bool:
        return self.state.rollouts >= self.settings.max_rollouts

    async def begin(self) -> None:
        first = _Template("v0", self.seed_prompt.template)
        trials = await self._try(first, self.front, self.val_dataset, "val", "the first prompt")
        self.state.prompts.append(PooledPrompt(first.name, first.template, None, _scores(trials)))
        self.log(self._about_pool())

    async def step(self, number: int) -> Mapping[str, float]:
        metrics = await self._iteration(number)
        self.state.iteration += 1
        return metrics | self._about_pool()

    async def _iteration(self, number: int) -> dict[str, float]:
        """Make a successor of a prompt of the front, and keep it where it earns more on the same tasks."""
        pool, settings = self.state, self.settings
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
            self.logger.note(f"iteration {number}: {made.name} is the best prompt so far ({made.score:.3f})")
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
        self.state.rollouts += len(trials)
        return trials

    def _about_pool(self) -> dict[str, float]:
        return {
            "reward/best": self.state.best.score,
            "pool/size": float(len(self.state.prompts)),
            "pool/front": float(sum(weight > 0 for weight in self.state.weights)),
            "rollouts": float(self.state.rollouts),
        }


def _scores(trials: Sequence[Trial]) -> list[float]:
    return [trial.score for trial in trials]


def _mean(trials: Sequence[Trial]) -> float:
    return sum(_scores(trials)) / len(trials)
