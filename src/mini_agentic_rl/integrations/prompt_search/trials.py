"""Trials of prompts: one rollout per task, and their transcripts for the critic."""

from __future__ import annotations

import json
import logging
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...adapter import OpenAIMessages, TraceToMessages
from ...algorithm.rollouts import rollout_config
from ...algorithm.settings import OnFailure
from ...algorithm.tasks import derive_seed
from ...emitter import find_final_reward, get_message_value
from ...logging import CountedCauses
from ...metrics import MetricsLogger
from ...semconv import SAMPLING_SEED
from ...store import LightningStore
from ...types import (
    Dataset,
    EnqueueRolloutRequest,
    NamedResources,
    PromptTemplate,
    Rollout,
    RolloutMode,
    Span,
)
from .state import APOSettings, Search, Version

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
"""Seconds between two reports of progress while waiting."""


@dataclass(frozen=True)
class Trial:
    """One rollout of a prompt."""

    task: Any
    status: str
    reward: float | None
    error: str | None
    """Reason for a missing reward; None with a reward."""
    spans: Sequence[Span]

    @property
    def score(self) -> float:
        """The reward; 0 without one."""
        return self.reward if self.error is None and self.reward is not None else 0.0


def mean_score(trials: Sequence[Trial], on_failure: OnFailure) -> float | None:
    """Return the mean score; trials without a reward count as 0 or are left out. None if no trial has a reward."""
    earned = [trial for trial in trials if trial.error is None]
    if not earned:
        return None
    return sum(trial.score for trial in earned) / len(earned if on_failure == "drop" else trials)


@dataclass(eq=False)
class Trials:
    """Runs prompts against tasks."""

    store: LightningStore
    logger: MetricsLogger
    settings: APOSettings
    name: str
    """Resource name under which the agent finds the prompt."""
    seed_prompt: PromptTemplate
    """Every version is this resource with another template."""
    resources: NamedResources
    """The other resources of the agent."""
    state: Search
    """Counts rollouts with and without a reward."""
    _causes: CountedCauses = field(default_factory=CountedCauses, init=False)
    _ids: dict[str, str] = field(default_factory=dict, init=False)

    def prompt(self, version: Version) -> PromptTemplate:
        """Return the prompt resource of a version."""
        return self.seed_prompt.model_copy(update={"template": version.template})

    async def publish(self, version: Version) -> str:
        """Make it the latest resources of the store; return their id."""
        update = await self.store.add_resources({**self.resources, self.name: self.prompt(version)})
        self._ids[version.name] = update.resources_id
        return update.resources_id

    async def run(
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
                resources_id=self._ids.get(version.name) or await self.publish(version),
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
        ended = await self._wait(requests, settings.rollout_batch_timeout * len(prompts))
        trials = [await self._read(rollout) for rollout in ended]
        self._tell(trials, purpose)
        counts = [len(rows) for _, rows in prompts]
        starts = [sum(counts[:index]) for index in range(len(counts))]
        return [trials[start : start + count] for start, count in zip(starts, counts, strict=True)]

    async def _wait(self, requests: Sequence[EnqueueRolloutRequest], seconds: float) -> list[Rollout]:
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
        return Trial(rollout.input, rollout.status, reward, error, spans)

    def _tell(self, trials: Sequence[Trial], purpose: str) -> None:
        reasons = Counter(trial.error for trial in trials if trial.error is not None)
        consequence = "are left out" if self.settings.on_failure == "drop" else "count as 0"
        for reason, count in reasons.items():
            if self._causes.add(reason, count):
                logger.warning("%s: %d of %d rollouts %s: %s", purpose, count, len(trials), consequence, reason)
            self.state.unrewarded[reason] = self.state.unrewarded.get(reason, 0) + count
        self.state.rewarded += len(trials) - reasons.total()


def transcript(trial: Trial, number: int, adapter: TraceToMessages, characters: int) -> str:
    """Return the transcript of a rollout: task, conversation (cut in the middle to `characters`) and reward."""
    lines = [f"### Attempt {number}", f"Task: {_json(trial.task)}", *_conversation(trial.spans, adapter)]
    text = "\n".join(lines)
    if len(text) > characters:
        half = characters // 2
        text = f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
    return f"{text}\nReward: {trial.score:g}" + (f" ({trial.error})" if trial.error else "")


def _conversation(spans: Sequence[Span], adapter: TraceToMessages) -> list[str]:
    rows = adapter(spans)
    lines = [line for row in _longest(rows) for line in ("Conversation:", *map(_message, row["messages"]))]
    notes = [value for value in map(get_message_value, spans) if value is not None]
    return [*lines, *(f"Note of the agent: {text}" for text in notes)]


def _longest(rows: Sequence[OpenAIMessages]) -> list[OpenAIMessages]:
    """Return the conversations that no later call continues."""
    return [
        row
        for index, row in enumerate(rows)
        if not any(later["messages"][: len(row["messages"])] == row["messages"] for later in rows[index + 1 :])
    ]


def _message(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(str(part.get("text", part)) if isinstance(part, dict) else str(part) for part in content)
    calls = message.get("tool_calls")
    parts = [text for text in (content, _json(calls) if calls else None) if text]
    return f"[{message.get('role', 'unknown')}] " + "\n".join(map(str, parts))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
