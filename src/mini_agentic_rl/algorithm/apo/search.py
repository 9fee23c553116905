"""The search of APO: measure the first prompt, then rounds of trying, criticising, rewriting and choosing.

Every draw follows from the seed and the round, and the state is written whole after each round: a search that was
killed begins the unfinished round again and, with a critic that answers alike, ends as an unbroken one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from openai import AsyncOpenAI

from ...adapter import TraceToMessages
from ...errors import RunFailedError
from ...metrics import every
from ...types import Dataset, NamedResources, PromptTemplate
from ..base import AlgorithmContext
from ..seeds import derive_seed, tasks_of_step
from .beam import Search, Version, read_search, write_search
from .critic import Critic, CriticError
from .settings import APOSettings
from .trials import Trial, Trials, mean_score, transcript

logger = logging.getLogger(__name__)


class Searcher(Protocol):
    """The part of APO that a run reads, and the search that it keeps there."""

    search: Search | None

    @property
    def client(self) -> AsyncOpenAI: ...

    @property
    def settings(self) -> APOSettings: ...

    @property
    def context(self) -> AlgorithmContext: ...

    @property
    def history(self) -> list[dict[str, Any]]: ...


class SearchRun:
    """One run of APO."""

    def __init__(
        self,
        algorithm: Searcher,
        name: str,
        seed_prompt: PromptTemplate,
        resources: NamedResources,
        train_dataset: Dataset[Any],
        val_dataset: Dataset[Any],
    ) -> None:
        context = algorithm.context
        self.algorithm = algorithm
        self.settings = algorithm.settings
        self.logger = context.logger
        self.checkpoints = context.checkpoints
        self.resume = context.resume
        self.adapter = context.adapter if isinstance(context.adapter, TraceToMessages) else TraceToMessages()
        self.seed_prompt = seed_prompt
        self.critic = Critic(algorithm.client, self.settings, seed_prompt)
        self.trials = Trials(context.store, self.logger, self.settings, name, seed_prompt, resources)
        self.train_dataset = train_dataset
        self.val_dataset = val_dataset
        self.search = Search.begin(seed_prompt.template)

    async def all(self) -> None:
        """Begin or go on, to the end."""
        await self._resume()
        self.algorithm.search = self.search
        if not self.search.begun:
            if self.settings.run_initial_validation:
                await self._measure(self.search.version("v0"), "initial validation")
                self._log({"reward/best": self._best_score()})
            self.search.begun = True
            await self._checkpoint()
        while self.search.rounds < self.settings.beam_rounds:
            metrics = await self._round(self.search.rounds + 1)
            self.search.rounds += 1
            self._log(metrics)
            await self._checkpoint()
        if self.trials.unrewarded and not self.trials.rewarded and self._best_score() is None:
            raise RunFailedError(every(self.trials.unrewarded.total(), "rollout"), self.trials.unrewarded)
        await self.trials.publish(self.search.version(self.search.best))
        if self.checkpoints is not None:
            where = await asyncio.to_thread(self.checkpoints.save_result, "prompt", self._write_result)
            self.logger.note(f"the best prompt, {self.search.best}, is in {where}")

    async def _round(self, number: int) -> dict[str, float | None]:
        started = time.perf_counter()
        children = await self._children(number)
        found = time.perf_counter()
        self.search.spend("search", found - started)
        if not children:
            logger.error("round %d found no new prompt; the prompts so far stay: %s", number, self.search.rejected)
            return {"candidates/new": 0.0, "reward/best": self._best_score()}
        candidates = [*self.search.survivors(), *children]
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
        leader = self.search.select(candidates, self.settings.beam_width)
        if leader.score is None and leader.latest is not None:
            await self._measure(leader, f"round {number}: all validation tasks")
        if self.search.crown(leader):
            self.logger.note(f"round {number}: {leader.name} is the best prompt so far ({leader.score:.3f})")
        self.search.spend("validation", time.perf_counter() - found)
        scores = [version.latest for version in candidates if version.latest is not None]
        return {
            "reward/mean": sum(scores) / len(scores) if scores else None,
            "reward/leader": leader.latest,
            "reward/best": self._best_score(),
            "candidates/new": float(len(children)),
        }

    async def _children(self, number: int) -> list[Version]:
        """Return the new prompts of a round."""
        settings = self.settings
        parents = self.search.parents(settings.beam_width)
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
                child = self.search.add(answer[1], parent, answer[0])
                if child is not None:
                    children.append(child)
                else:
                    reason = "rewritten template repeats an earlier one"
            if reason is not None:
                self.search.rejected[reason] = self.search.rejected.get(reason, 0) + 1
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
        self.search.spend("validation", time.perf_counter() - started)

    async def _resume(self) -> None:
        latest = self.checkpoints.latest_checkpoint() if self.checkpoints is not None else None
        if self.resume and latest is not None:
            self.search = await asyncio.to_thread(read_search, latest[1], self.seed_prompt.template)
            self.trials.unrewarded.update(self.search.unrewarded)
            self.logger.note(f"resumed after round {self.search.rounds}")

    async def _checkpoint(self) -> None:
        self.search.unrewarded = dict(self.trials.unrewarded)
        if self.checkpoints is not None:
            await asyncio.to_thread(
                self.checkpoints.save_checkpoint, self.search.rounds, lambda folder: write_search(folder, self.search)
            )

    def _write_result(self, folder: Path) -> None:
        best = self.search.version(self.search.best)
        (folder / "best_prompt.txt").write_text(best.template, encoding="utf-8")
        result = {"prompt": self.trials.prompt(best).model_dump(), **asdict(best), "history": self.algorithm.history}
        (folder / "apo.json").write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def _best_score(self) -> float | None:
        return self.search.version(self.search.best).score

    def _log(self, metrics: dict[str, float | None]) -> None:
        self.logger.log({name: value for name, value in metrics.items() if value is not None}, step=self.search.rounds)
        self.search.logged += 1
