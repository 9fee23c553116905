"""The search of APO: measure the first prompt, then rounds of trying, criticising, rewriting and choosing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence

from ....algorithm.seeds import derive_seed, tasks_of_step
from ..run import PromptSearchRun, SearchInputs
from ..trials import Trial, mean_score, transcript
from ..writer import CriticError
from .beam import Search, Version
from .critic import Critic
from .settings import APOSettings

logger = logging.getLogger(__name__)


class SearchRun(PromptSearchRun[APOSettings, Search]):
    """One run of APO."""

    def __init__(self, settings: APOSettings, inputs: SearchInputs) -> None:
        super().__init__(settings, inputs, Search.begin(inputs.seed_prompt.template))
        self.critic = Critic(inputs.client, settings, inputs.seed_prompt)

    @property
    def has_begun(self) -> bool:
        return self.state.begun

    @property
    def has_ended(self) -> bool:
        return self.state.rounds >= self.settings.beam_rounds

    async def begin(self) -> None:
        if self.settings.run_initial_validation:
            await self._measure(self.state.first, "initial validation")
            self.log({"reward/best": self.state.winner.score})
        self.state.begun = True

    async def step(self, number: int) -> Mapping[str, float | None]:
        metrics = await self._round(number)
        self.state.rounds += 1
        return metrics

    async def _round(self, number: int) -> dict[str, float | None]:
        started = time.perf_counter()
        children = await self._children(number)
        found = time.perf_counter()
        self.state.spend("search", found - started)
        if not children:
            logger.error("round %d found no new prompt; the prompts so far stay: %s", number, self.state.rejected)
            return {"candidates/new": 0.0, "reward/best": self.state.winner.score}
        candidates = [*self.state.survivors(), *children]
        size = len(self.val_dataset)
        batch = min(self.settings.val_batch_size, size)
        rows = tasks_of_step(derive_seed(self.settings.seed, "validation"), size, number - 1, batch)
        results = await self.trials.run(
            [(version, rows) for version in candidates], self.val_dataset, "val", f"round {number}: validation"
        )
        for version, trials in zip(candidates, results, strict=True):
            version.scores.append((number, mean_score(trials, self.settings.on_failure)))
            if batch == size and version.score is None:
                version.score = version.latest
        leader = self.state.select(candidates, self.settings.beam_width)
        if leader.score is None and leader.latest is not None:
            await self._measure(leader, f"round {number}: all validation tasks")
        if self.state.crown(leader):
            self.logger.note(f"round {number}: {leader.name} is the best prompt so far ({leader.score:.3f})")
        self.state.spend("validation", time.perf_counter() - found)
        scores = [version.latest for version in candidates if version.latest is not None]
        return {
            "reward/mean": sum(scores) / len(scores) if scores else None,
            "reward/leader": leader.latest,
            "reward/best": self.state.winner.score,
            "candidates/new": float(len(children)),
        }

    async def _children(self, number: int) -> list[Version]:
        """Return the new prompts of a round."""
        settings = self.settings
        parents = self.state.parents(settings.beam_width)
        size = len(self.train_dataset)
        batch = min(settings.gradient_batch_size, size)
        order = derive_seed(settings.seed, "training")
        tried = [
            (parent, tasks_of_step(order, size, (number - 1) * settings.beam_width + index, batch))
            for index, parent in enumerate(parents)
        ]
        results = await self.trials.run(tried, self.train_dataset, "train", f"round {number}: tasks for the critic")
        wanted = [
            (parent, trials, number + index + branch)
            for index, (parent, trials) in enumerate(zip(parents, results, strict=True))
            for branch in range(settings.branch_factor)
        ]
        self.logger.phase(f"round {number}: new prompts", len(wanted))
        tasks = [asyncio.ensure_future(self._rewritten(parent, trials, angle)) for parent, trials, angle in wanted]
        try:
            answers = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        children = []
        for (parent, _, _), answer in zip(wanted, answers, strict=True):
            reason = answer if isinstance(answer, str) else None
            if not isinstance(answer, str):
                child = self.state.add(answer[1], parent, answer[0])
                if child is not None:
                    children.append(child)
                else:
                    reason = "rewritten template repeats an earlier one"
            if reason is not None:
                self.state.reject(reason)
                logger.warning("round %d: a candidate made of %s came to nothing: %s", number, parent.name, reason)
        return children

    async def _rewritten(self, parent: Version, trials: Sequence[Trial], angle: int) -> tuple[str, str] | str:
        """(criticism, new template), or why there is none."""
        shown = [
            transcript(trial, index, self.adapter, self.settings.transcript_characters)
            for index, trial in enumerate(trials, start=1)
        ]
        try:
            critique = await self.critic.criticise(parent.template, shown, angle)
            return critique, await self.critic.rewrite(parent.template, critique)
        except CriticError as error:
            return str(error)
        finally:
            self.logger.advance()

    async def _measure(self, version: Version, purpose: str) -> None:
        started = time.perf_counter()
        rows = range(len(self.val_dataset))
        (trials,) = await self.trials.run([(version, rows)], self.val_dataset, "val", purpose)
        version.score = mean_score(trials, self.settings.on_failure)
        self.state.spend("validation", time.perf_counter() - started)
