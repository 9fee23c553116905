"""One run of APO: measure the first prompt, then rounds of trial, criticism, rewriting and selection.

Every draw depends on the seed and the round only, and the state is written after each round: a killed search restarts
the unfinished round and, if the models give the same answers, ends with the same result.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...adapter import TraceToMessages
from ...algorithm.base import AlgorithmContext
from ...algorithm.tasks import derive_seed, tasks_from
from ...errors import RunFailedError
from ...metrics import every
from ...types import Dataset, NamedResources, PromptTemplate
from .critic import Critic, CriticError
from .state import APOSettings, Search, Version
from .trials import Trial, Trials, mean_score, transcript

if TYPE_CHECKING:
    from openai import AsyncOpenAI

logger = logging.getLogger(__name__)


class SearchRun:
    """One run of APO.

    Args:
        name: resource name of the prompt.
        seed_prompt: the prompt to improve.
        resources: all resources of the agent.
    """

    def __init__(
        self,
        client: AsyncOpenAI,
        settings: APOSettings,
        context: AlgorithmContext,
        name: str,
        seed_prompt: PromptTemplate,
        resources: NamedResources,
        train_dataset: Dataset[Any],
        val_dataset: Dataset[Any],
    ) -> None:
        self.settings = settings
        self.logger = context.logger
        self.checkpoints = context.checkpoints
        self.resume = context.resume
        self.adapter = context.adapter if isinstance(context.adapter, TraceToMessages) else TraceToMessages()
        self.seed_prompt = seed_prompt
        self.train_dataset = train_dataset
        self.val_dataset = val_dataset
        self.state = Search.begin(seed_prompt.template)
        self.critic = Critic(client, settings, seed_prompt)
        self.trials = Trials(context.store, self.logger, settings, name, seed_prompt, resources, self.state)

    async def all(self) -> None:
        """Begin or resume, and search to the end."""
        latest = self.checkpoints.latest_checkpoint() if self.checkpoints is not None else None
        if self.resume and latest is not None:
            self.state = await asyncio.to_thread(Search.read, latest[1], self.seed_prompt.template)
            self.trials.state = self.state
            self.logger.note(f"resumed after round {self.state.rounds}")
        if not self.state.begun:
            if self.settings.run_initial_validation:
                await self._measure(self.state.versions[0], "initial validation")
                self._log({"reward/best": self.state.winner.score})
            self.state.begun = True
            await self._checkpoint()
        while self.state.rounds < self.settings.beam_rounds:
            metrics = await self._round(self.state.rounds + 1)
            self.state.rounds += 1
            self._log(metrics)
            await self._checkpoint()
        if self.state.unrewarded and not self.state.rewarded:
            count = sum(self.state.unrewarded.values())
            raise RunFailedError(every(count, "rollout"), self.state.unrewarded)
        best = self.state.winner
        await self.trials.publish(best)
        if self.checkpoints is not None:
            prompt = self.trials.prompt(best)
            where = await asyncio.to_thread(
                self.checkpoints.save_result, "prompt", lambda folder: self.state.write_result(folder, prompt)
            )
            self.logger.note(f"the best prompt, {best.name}, is in {where}")

    def _log(self, metrics: Mapping[str, float | None]) -> None:
        """Log the metrics of a round that are not None."""
        self.logger.log({name: value for name, value in metrics.items() if value is not None}, step=self.state.rounds)
        self.state.logged += 1

    async def _checkpoint(self) -> None:
        if self.checkpoints is not None:
            await asyncio.to_thread(self.checkpoints.save_checkpoint, self.state.rounds, self.state.write)

    async def _round(self, number: int) -> dict[str, float | None]:
        started = time.perf_counter()
        children = await self._children(number)
        searched = time.perf_counter()
        self.state.spend("search", searched - started)
        if not children:
            logger.error("round %d found no new prompt; the prompts so far stay: %s", number, self.state.rejected)
            return {"candidates/new": 0.0, "reward/best": self.state.winner.score}
        candidates = [*self.state.survivors(), *children]
        size = len(self.val_dataset)
        batch = min(self.settings.val_batch_size, size)
        rows = tasks_from(derive_seed(self.settings.seed, "validation"), size, (number - 1) * batch, batch)
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
        self.state.spend("validation", time.perf_counter() - searched)
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
            (parent, tasks_from(order, size, ((number - 1) * settings.beam_width + index) * batch, batch))
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
                self.state.rejected[reason] = self.state.rejected.get(reason, 0) + 1
                logger.warning("round %d: a candidate made of %s was rejected: %s", number, parent.name, reason)
        return children

    async def _rewritten(self, parent: Version, trials: Sequence[Trial], angle: int) -> tuple[str, str] | str:
        """Return (criticism, new template), or the reason for failure."""
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
