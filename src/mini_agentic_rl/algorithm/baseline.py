"""`Baseline`: runs every task through the agent and logs the results. For trying an agent out, not for training."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ..emitter import find_final_reward
from ..errors import RunFailedError
from ..gateway import resources_with_proxy
from ..logging import CountedCauses
from ..metrics import every
from ..types import Dataset, EnqueueRolloutRequest, Rollout, RolloutMode, RolloutStatus, Span
from .base import Algorithm

logger = logging.getLogger(__name__)

SpanVerbosity = Literal["keys", "key_values", "none"]

_SHOWN_CHARACTERS = 200
_WAITING: Sequence[RolloutStatus] = ("queuing", "requeuing")


class FastAlgorithm(Algorithm):
    """An algorithm quick enough for `Trainer.dev`."""


class Baseline(FastAlgorithm):
    """Every training task and then every validation task, `n_epochs` times; all is logged, nothing changes.

    Args:
        n_epochs: passes over the tasks; the trainer's num_epochs, where given, counts instead.
        train_split: without validation tasks, this share of the training tasks (between 0 and 1, from the beginning)
            runs as training and the rest as validation; None runs all of them as training.
        polling_interval: seconds between two queries of the store.
        max_queue_length: at most this many rollouts wait in the queue at once.
        span_verbosity: logged of each span: the names of its attributes, their values as well, or nothing.

    Raises:
        ValueError: a setting is out of its range.
    """

    honours = frozenset({"num_epochs"})

    def __init__(
        self,
        *,
        n_epochs: int = 1,
        train_split: float | None = None,
        polling_interval: float = 0.5,
        max_queue_length: int = 4,
        span_verbosity: SpanVerbosity = "keys",
    ) -> None:
        super().__init__()
        if n_epochs < 1:
            raise ValueError(f"n_epochs must be 1 or more, not {n_epochs}")
        if train_split is not None and not 0 < train_split < 1:
            raise ValueError(f"train_split must be between 0 and 1, not {train_split}")
        if polling_interval <= 0:
            raise ValueError(f"polling_interval must be above 0, not {polling_interval}")
        if max_queue_length < 1:
            raise ValueError(f"max_queue_length must be 1 or more, not {max_queue_length}")
        if span_verbosity not in ("keys", "key_values", "none"):
            raise ValueError(f"span_verbosity must be 'keys', 'key_values' or 'none', not {span_verbosity!r}")
        self.n_epochs = n_epochs
        self.train_split = train_split
        self.polling_interval = polling_interval
        self.max_queue_length = max_queue_length
        self.span_verbosity = span_verbosity
        self._statuses: Counter[str] = Counter()
        self._rewards: dict[str, list[float]] = {}
        self._failures = CountedCauses()

    @property
    def summary(self) -> Mapping[str, Any]:
        """`rollouts` (status to count), `reward` (mode to the mean of the rewards that were given)."""
        return {
            "rollouts": dict(self._statuses),
            "reward": {mode: sum(rewards) / len(rewards) for mode, rewards in self._rewards.items()},
        }

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Run all, in order.

        Raises:
            RunFailedError: all rollouts failed; the message has the most frequent reason.
        """
        context = self.context
        tasks = self._tasks(train_dataset, val_dataset)
        if not tasks:
            logger.error("nothing to run: give train_dataset or val_dataset at least one task")
            return
        self._statuses, self._rewards, self._failures = Counter(), {}, CountedCauses()
        epochs = context.num_epochs or self.n_epochs
        async with resources_with_proxy(context.initial_resources, context.llm_proxy, context.store) as resources:
            resources_id = (await context.store.add_resources(resources)).resources_id if resources else None
            context.logger.phase("baseline", epochs * len(tasks))
            for _ in range(epochs):
                await self._epoch(tasks, resources_id)
        if not self._statuses["succeeded"]:
            raise RunFailedError(every(self._statuses.total(), "rollout"), self._failures.counts)

    def _tasks(
        self, train_dataset: Dataset[Any] | None, val_dataset: Dataset[Any] | None
    ) -> list[tuple[RolloutMode, Any]]:
        train = [] if train_dataset is None else [train_dataset[i] for i in range(len(train_dataset))]
        val = [] if val_dataset is None else [val_dataset[i] for i in range(len(val_dataset))]
        if not val and self.train_split is not None:
            kept = round(self.train_split * len(train))
            train, val = train[:kept], train[kept:]
        return [*(("train", task) for task in train), *(("val", task) for task in val)]

    async def _epoch(self, tasks: Sequence[tuple[RolloutMode, Any]], resources_id: str | None) -> None:
        """Keep the queue filled up to `max_queue_length` until all tasks have ended."""
        store, ended = self.context.store, asyncio.Event()
        harvests = []
        try:
            for mode, task in tasks:
                while (await store.query_rollouts(status_in=_WAITING, limit=1)).total >= self.max_queue_length:
                    ended.clear()
                    with contextlib.suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(ended.wait(), self.polling_interval)
                request = EnqueueRolloutRequest(input=task, mode=mode, resources_id=resources_id)
                (rollout,) = await store.enqueue_many_rollouts([request])
                harvests.append(asyncio.ensure_future(self._harvest(rollout.rollout_id, ended)))
            await asyncio.gather(*harvests)
        finally:
            for harvest in harvests:
                harvest.cancel()

    async def _harvest(self, rollout_id: str, ended: asyncio.Event) -> None:
        store = self.context.store
        rollouts: list[Rollout] = []
        while not rollouts:
            rollouts = await store.wait_for_rollouts(rollout_ids=[rollout_id], timeout=self.polling_interval)
        ended.set()
        rollout = rollouts[0]
        attempts = await store.query_attempts(rollout_id)
        spans = await store.query_spans(rollout_id)
        latest = [span for span in spans if attempts and span.attempt_id == attempts[-1].attempt_id]
        reward = find_final_reward(latest)
        self._statuses[rollout.status] += 1
        if rollout.status != "succeeded":
            error = attempts[-1].metadata.get("error") if attempts else None
            self._failures.add(str(error or f"{rollout.status}, no reason recorded"))
        if reward is not None:
            self._rewards.setdefault(rollout.mode or "train", []).append(reward)
        logger.info(
            "rollout %s (%s) %s: reward %s, %d spans", rollout_id, rollout.mode, rollout.status, reward, len(latest)
        )
        for attempt in attempts:
            error = attempt.metadata.get("error")
            logger.info(
                "rollout %s: attempt %d (%s) on worker %s %s%s",
                rollout_id,
                attempt.sequence_id,
                attempt.attempt_id,
                attempt.worker_id,
                attempt.status,
                f", error: {error}" if error else "",
            )
            for span in spans if self.span_verbosity != "none" else ():
                if span.attempt_id == attempt.attempt_id:
                    logger.info("rollout %s: %s", rollout_id, describe_span(span, self.span_verbosity))
        adapter = self.context.adapter
        if adapter is not None:
            name = type(adapter).__name__
            try:
                logger.info("rollout %s: %s makes of it %s", rollout_id, name, _short(adapter(latest)))
            except Exception as error:  # a user's adapter may fail in any way
                logger.warning("rollout %s: %s cannot read its spans: %s", rollout_id, name, error)
        self.context.logger.advance()


def describe_span(span: Span, verbosity: SpanVerbosity) -> str:
    """Return one line about a span: number, name, duration in seconds, status, and attributes by `verbosity`."""
    timed = span.start_time is not None and span.end_time is not None
    duration = f"{(span.end_time or 0) - (span.start_time or 0):.3f} s" if timed else "duration unknown"
    line = f"span {span.sequence_id} {span.name!r} ({duration}, {span.status.status_code})"
    if verbosity == "keys":
        return f"{line} with {', '.join(sorted(span.attributes)) or 'no attributes'}"
    if verbosity == "key_values":
        pairs = ", ".join(f"{key}={_short(value)}" for key, value in sorted(span.attributes.items()))
        return f"{line} with {pairs or 'no attributes'}"
    return line


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}… ({len(text)} characters)"
