"""One run of APO: measure the first prompt, then rounds of trial, criticism, rewriting and selection.

Every draw depends on the seed and the round only, and the state is written after each round: a killed search restarts
the unfinished round and, if the models give the same answers, ends with the same result.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...adapter import TraceToMessages
from ...algorithm.base import AlgorithmContext
from ...algorithm.rollouts import rollout_config
from ...algorithm.tasks import derive_seed, tasks_from
from ...emitter import find_final_reward, get_message_value
from ...errors import RunFailedError
from ...logging import CountedCauses
from ...metrics import every
from ...semconv import SAMPLING_SEED
from ...types import Dataset, EnqueueRolloutRequest, NamedResources, PromptTemplate, Rollout, RolloutMode, Span
from .critic import Critic, CriticError
from .state import APOSettings, Search, Version

if TYPE_CHECKING:
    from openai import AsyncOpenAI

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
"""Seconds between two reports of progress while waiting."""


@dataclass(frozen=True)
class Trial:
    """One rollout of a prompt."""

    task: Any
    score: float
    """The reward; 0 without one."""
    error: str | None
    """Reason for a missing reward; None with a reward."""
    spans: Sequence[Span]


class SearchRun:
    """One run of APO.

    Args:
        name: resource name of the prompt.
        seed_prompt: the prompt to improve; every version is this resource with another template.
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
    ) -> None:
        self.settings = settings
        self.store = context.store
        self.logger = context.logger
        self.checkpoints = context.checkpoints
        self.resume = context.resume
        self.adapter = context.adapter if isinstance(context.adapter, TraceToMessages) else TraceToMessages()
        self.name = name
        self.seed_prompt = seed_prompt
        self.resources = resources
        self.state = Search([Version("v0", seed_prompt.template)])
        self.critic = Critic(client, settings, seed_prompt)
        self._causes = CountedCauses()
        self._resources_ids: dict[str, str] = {}

    async def run(self, train_dataset: Dataset[Any], val_dataset: Dataset[Any]) -> None:
        """Begin or resume, and search to the end."""
        latest = self.checkpoints.latest_checkpoint() if self.checkpoints is not None else None
        if self.resume and latest is not None:
            self.state = await asyncio.to_thread(Search.read, latest[1], self.seed_prompt.template)
            self.logger.note(f"resumed after round {self.state.rounds}")
        if not self.state.begun:
            if self.settings.run_initial_validation:
                await self._measure(self.state.versions[0], val_dataset, "initial validation")
                self._log({"reward/best": self.state.winner.score})
            self.state.begun = True
            await self._checkpoint()
        while self.state.rounds < self.settings.beam_rounds:
            number = self.state.rounds + 1
            metrics = await self._round(number, train_dataset, val_dataset)
            self.state.rounds = number
            self._log(metrics)
            await self._checkpoint()
        if self.state.unrewarded and not self.state.rewarded:
            count = sum(self.state.unrewarded.values())
            raise RunFailedError(every(count, "rollout"), self.state.unrewarded)
        best = self.state.winner
        await self._publish(best)
        if self.checkpoints is not None:
            prompt = self._prompt(best)
            where = await asyncio.to_thread(
                self.checkpoints.save_result, "prompt", lambda folder: self.state.write(folder, prompt)
            )
            self.logger.note(f"the best prompt, {best.name}, is in {where}")

    def _log(self, metrics: Mapping[str, float | None]) -> None:
        """Log the metrics of a round that are not None."""
        self.logger.log({name: value for name, value in metrics.items() if value is not None}, step=self.state.rounds)
        self.state.logged += 1

    async def _checkpoint(self) -> None:
        if self.checkpoints is not None:
            await asyncio.to_thread(self.checkpoints.save_checkpoint, self.state.rounds, self.state.write)

    async def _round(
        self, number: int, train_dataset: Dataset[Any], val_dataset: Dataset[Any]
    ) -> dict[str, float | None]:
        """Run one round, and return its metrics."""
        state, settings = self.state, self.settings
        started = time.perf_counter()
        children = await self._children(number, train_dataset)
        searched = time.perf_counter()
        state.spend("search", searched - started)
        if not children:
            logger.error("round %d found no new prompt; the prompts so far stay: %s", number, state.rejected)
            return {"candidates/new": 0.0, "reward/best": state.winner.score}
        candidates = [*state.survivors, *children]
        size = len(val_dataset)
        batch = min(settings.val_batch_size, size)
        rows = tasks_from(derive_seed(settings.seed, "validation"), size, (number - 1) * batch, batch)
        results = await self._try(
            [(version, rows) for version in candidates], val_dataset, "val", f"round {number}: validation"
        )
        for version, trials in zip(candidates, results, strict=True):
            version.scores.append((number, self._mean_score(trials)))
            if batch == size and version.score is None:
                version.score = version.latest
        # Older versions win ties.
        ranked = sorted(candidates, key=lambda version: (version.latest is None, -(version.latest or 0.0)))
        state.beam = [version.name for version in ranked[: settings.beam_width]]
        leader = ranked[0]
        if leader.score is None and leader.latest is not None:
            await self._measure(leader, val_dataset, f"round {number}: all validation tasks")
        best = state.winner.score
        if leader.score is not None and (best is None or leader.score > best):
            state.best = leader.name
            self.logger.note(f"round {number}: {leader.name} is the best prompt so far ({leader.score:.3f})")
        state.spend("validation", time.perf_counter() - searched)
        scores = [version.latest for version in candidates if version.latest is not None]
        return {
            "reward/mean": sum(scores) / len(scores) if scores else None,
            "reward/leader": leader.latest,
            "reward/best": state.winner.score,
            "candidates/new": float(len(children)),
        }

    async def _children(self, number: int, dataset: Dataset[Any]) -> list[Version]:
        """Return the new prompts of a round."""
        settings, survivors = self.settings, self.state.survivors
        batch = min(settings.gradient_batch_size, len(dataset))
        order = derive_seed(settings.seed, "training")
        first = (number - 1) * settings.beam_width
        tried = [
            # A beam with fewer prompts than its width is repeated.
            (survivors[index % len(survivors)], tasks_from(order, len(dataset), (first + index) * batch, batch))
            for index in range(settings.beam_width)
        ]
        results = await self._try(tried, dataset, "train", f"round {number}: tasks for the critic")
        wanted = [
            (parent, trials, number + index + branch)
            for index, ((parent, _), trials) in enumerate(zip(tried, results, strict=True))
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
            if isinstance(answer, str):
                reason = answer
            elif (child := self.state.add(answer[1], parent, answer[0])) is not None:
                children.append(child)
                continue
            else:
                reason = "rewritten template repeats an earlier one"
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

    async def _measure(self, version: Version, dataset: Dataset[Any], purpose: str) -> None:
        """Measure a prompt on all validation tasks."""
        started = time.perf_counter()
        (trials,) = await self._try([(version, range(len(dataset)))], dataset, "val", purpose)
        version.score = self._mean_score(trials)
        self.state.spend("validation", time.perf_counter() - started)

    def _mean_score(self, trials: Sequence[Trial]) -> float | None:
        """Return the mean reward; trials without a reward count as 0 or are left out. None if no trial has a reward."""
        earned = [trial for trial in trials if trial.error is None]
        if not earned:
            return None
        return sum(trial.score for trial in earned) / len(earned if self.settings.on_failure == "drop" else trials)

    def _prompt(self, version: Version) -> PromptTemplate:
        return self.seed_prompt.model_copy(update={"template": version.template})

    async def _publish(self, version: Version) -> str:
        """Make a version the latest resources of the store; return their id."""
        update = await self.store.add_resources({**self.resources, self.name: self._prompt(version)})
        self._resources_ids[version.name] = update.resources_id
        return update.resources_id

    async def _try(
        self,
        prompts: Sequence[tuple[Version, Sequence[int]]],
        dataset: Dataset[Any],
        mode: RolloutMode,
        purpose: str,
    ) -> list[list[Trial]]:
        """Run each prompt on its rows of `dataset`, all at once; results in the order given.

        Unfinished rollouts are cancelled at the time limit. The sampling seed of a row is the same for all prompts.
        """
        settings = self.settings
        requests = [
            EnqueueRolloutRequest(
                input=dataset[row],
                mode=mode,
                resources_id=self._resources_ids.get(version.name) or await self._publish(version),
                config=rollout_config(settings.rollout_batch_timeout, settings.on_failure, settings.max_attempts),
                metadata={
                    "prompt": version.name,
                    "purpose": purpose,
                    SAMPLING_SEED: derive_seed(settings.seed, purpose, row),
                },
            )
            for version, rows in prompts
            for row in rows
        ]
        self.logger.phase(purpose, len(requests))
        rollouts = await self._wait(requests, settings.rollout_batch_timeout * len(prompts))
        trials = [await self._read(rollout) for rollout in rollouts]
        reasons = Counter(trial.error for trial in trials if trial.error is not None)
        consequence = "are left out" if settings.on_failure == "drop" else "count as 0"
        for reason, count in reasons.items():
            if self._causes.add(reason, count):
                logger.warning("%s: %d of %d rollouts %s: %s", purpose, count, len(trials), consequence, reason)
            self.state.unrewarded[reason] = self.state.unrewarded.get(reason, 0) + count
        self.state.rewarded += len(trials) - reasons.total()
        rest = iter(trials)
        return [[next(rest) for _ in rows] for _, rows in prompts]

    async def _wait(self, requests: Sequence[EnqueueRolloutRequest], seconds: float) -> list[Rollout]:
        """Enqueue rollouts and wait until they have ended; those left after `seconds` are cancelled."""
        rollouts = await self.store.enqueue_many_rollouts(requests)
        ended: dict[str, Rollout] = {}
        deadline = time.monotonic() + seconds
        missing = [rollout.rollout_id for rollout in rollouts]
        while missing:
            left = deadline - time.monotonic()
            for rollout in await self.store.wait_for_rollouts(
                rollout_ids=missing, timeout=max(0.0, min(_LOOK_SECONDS, left))
            ):
                ended[rollout.rollout_id] = rollout
                self.logger.advance()
            missing = [rollout_id for rollout_id in missing if rollout_id not in ended]
            if left <= 0:
                break
        for rollout_id in missing:
            ended[rollout_id] = await self.store.update_rollout(rollout_id, status="cancelled")
        return [ended[rollout.rollout_id] for rollout in rollouts]

    async def _read(self, rollout: Rollout) -> Trial:
        spans = list(await self.store.query_spans(rollout.rollout_id, "latest", sort_by="sequence_id"))
        reward = find_final_reward(spans)
        error = None
        if rollout.status == "cancelled":
            error = "not ended within rollout_batch_timeout"
        elif rollout.status != "succeeded":
            attempt = await self.store.get_latest_attempt(rollout.rollout_id)
            reason = None if attempt is None else attempt.metadata.get("error") or attempt.status
            error = f"rollout {rollout.status}: {reason or 'no reason recorded'}"
        elif reward is None:
            error = "no reward: neither the agent nor a hook gave one"
        elif not math.isfinite(reward):
            error = f"reward {reward}: no finite number"
        return Trial(rollout.input, 0.0 if error is not None or reward is None else reward, error, spans)


def transcript(trial: Trial, number: int, adapter: TraceToMessages, characters: int) -> str:
    """Return the transcript of a rollout: task, conversation (cut in the middle to `characters`) and reward.

    Of calls that continue each other, only the last is shown.
    """
    lines = [f"### Attempt {number}", f"Task: {_json(trial.task)}"]
    conversations = [row["messages"] for row in adapter(trial.spans)]
    for index, messages in enumerate(conversations):
        if not any(later[: len(messages)] == messages for later in conversations[index + 1 :]):
            lines += ["Conversation:", *map(_message, messages)]
    lines += [f"Note of the agent: {note}" for span in trial.spans if (note := get_message_value(span)) is not None]
    text = "\n".join(lines)
    if len(text) > characters:
        half = characters // 2
        text = f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
    return f"{text}\nReward: {trial.score:g}" + (f" ({trial.error})" if trial.error else "")


def _message(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(str(part.get("text", part)) if isinstance(part, dict) else str(part) for part in content)
    calls = message.get("tool_calls")
    parts = [text for text in (content, _json(calls) if calls else None) if text]
    return f"[{message.get('role', 'unknown')}] " + "\n".join(map(str, parts))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
