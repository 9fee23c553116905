"""Running rollouts from an algorithm's side: enqueue, wait, read their spans, and say why one has nothing to train on.

An `Evaluation` is a measurement; `answer_rows` turns it into rows, by which two runs are compared problem by problem:

    evaluation, step  the measurement: its name, and how many steps of the training it came after
    problem, hash     the task's `id`, or its place in the data set; a hash of its question
    sample            number of the try at the problem, from 0
    reward            the final reward; 0 of a rollout that failed or had none
    correct           the strict check: the reward is 1 or more, whatever form of answer it requires
    lenient           the answer is right in whatever form: by the strict check or `lenient_check`; null if the task
                      has no answer to compare with
    components        the final reward by its names, if it has several
    answer            the text of the last message; null if there is none
    failed            why there was nothing to measure; null if there was
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..adapter import TraceToMessages, TrainedCalls
from ..emitter import find_final_reward, find_reward_spans, get_rewards_from_span
from ..errors import RunFailedError
from ..logging import CountedCauses
from ..metrics import every
from ..rewards import is_correct
from ..semconv import AGL_EXCEPTION, FAILURE_REASON, ROLLOUT_BUDGET_EXCEEDED
from ..store import LightningStore
from ..tokens import CompletionRecord
from ..types import (
    Attempt,
    AttemptStatus,
    EnqueueRolloutRequest,
    Rollout,
    RolloutConfig,
    Span,
    trainable_agents_in,
)
from .settings import OnFailure

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
"""Seconds between two reports of progress while waiting."""

_SHOWN_IDS = 3

_NO_CALL = (
    "no LLM call recorded: the agent never called the model, neither at its rollout's base_url nor, where the rollout "
    "runs, at the plain one"
)

UNTRAINED_KEY = "untrained"
"""Key in a rollout's metadata: why one that succeeded gives nothing to train on or, outside of training, to measure."""
LENIENT: Final = "lenient"
"""Name of the component of a reward that is the lenient check, where an agent gives one."""
OF_TRANSFER: Final = ", transfer"
"""Ending of the name of a measurement on the split `transfer`, made beside one on the held-out tasks."""
MAX_ANSWER: Final = 4000
"""Characters of an answer that are kept, from its end."""


@dataclass(frozen=True)
class FinishedRollout:
    """A rollout that has ended, with the spans and records of its latest attempt."""

    rollout: Rollout
    spans: Sequence[Span]
    records: Sequence[CompletionRecord]
    """Its LLM calls that are trained, in order."""
    reward: float | None
    """Its final reward; None without one."""
    error: str | None
    """Reason for which its attempt failed; None when it succeeded."""
    untrained_calls: str | None = None
    """Reason for which none of its LLM calls is trained; None when one is, or when it made none."""
    calls_left_out: int = 0
    """Number of its LLM calls that are not trained."""
    over_budget: str | None = None
    """Reason for which the gateway took no more LLM calls of its attempt; None when it took all."""
    attempts: int = 1
    """Number of its attempts."""
    counts_as_zero: bool = False
    """True if it failed and is trained nevertheless, with a reward of 0."""

    @property
    def unscored(self) -> str | None:
        """The reason for which it cannot be measured; None if it can. Records of its calls do not matter."""
        if self.rollout.status != "succeeded" and not self.counts_as_zero:
            return f"attempt {self.rollout.status}: {self.error or 'no reason recorded'}"
        return "no reward: neither the agent nor a hook gave one" if self.reward is None else None

    @property
    def without_call(self) -> str | None:
        """The reason for which it is measured by its reward alone; None if it made a call, or cannot be measured."""
        return None if self.unscored or self.records or self.untrained_calls else _NO_CALL

    @property
    def untrainable(self) -> str | None:
        """The reason for which it cannot be trained; None if it can."""
        if self.rollout.status != "succeeded" and not self.counts_as_zero:
            return self.unscored
        if self.untrained_calls is not None:
            return self.untrained_calls
        return self.unscored if self.records else _NO_CALL

    @property
    def dimensions(self) -> Mapping[str, float]:
        """The final reward by its names, the primary one first; empty without one."""
        spans = find_reward_spans(self.spans)
        return {} if not spans else {reward.name: reward.value for reward in get_rewards_from_span(spans[-1])}


@dataclass(frozen=True)
class Evaluation:
    """Result of one measurement."""

    name: str
    rollouts: Sequence[FinishedRollout]
    """Problem by problem, `samples` of each together."""
    samples: int

    @property
    def rewards(self) -> list[float]:
        """The reward of each rollout; 0 for a failed one and for one without a reward."""
        return [0.0 if finished.unscored else finished.reward or 0.0 for finished in self.rollouts]

    @property
    def correct(self) -> list[int]:
        """For each problem the number of its samples that earned a reward of at least 1."""
        right = [reward >= 1.0 for reward in self.rewards]
        return [sum(right[i : i + self.samples]) for i in range(0, len(right), self.samples)]

    @property
    def accuracy(self) -> float:
        """Share of rollouts with a reward of at least 1."""
        return sum(self.correct) / max(1, len(self.rollouts))


def rollout_config(timeout_seconds: float | None, on_failure: OnFailure, max_attempts: int) -> RolloutConfig:
    """Return the configuration of rollouts that are tried again if `on_failure` is "retry"."""
    if on_failure != "retry":
        return RolloutConfig(timeout_seconds=timeout_seconds)
    retried: list[AttemptStatus] = ["failed", "timeout", "unresponsive"]
    return RolloutConfig(timeout_seconds=timeout_seconds, max_attempts=max_attempts, retry_condition=retried)


async def run_rollouts(
    store: LightningStore,
    requests: Sequence[EnqueueRolloutRequest],
    on_progress: Callable[[int], None],
    trained: TrainedCalls | None = None,
) -> list[FinishedRollout]:
    """Enqueue `requests`, wait until all have ended, and return them with their spans, in the order of the requests.

    Args:
        on_progress: called with the number of rollouts that have ended since its last call; failed ones count.
        trained: the LLM calls to read; None takes all but those made while a reward was computed.
    """
    rollouts = await store.enqueue_many_rollouts(requests)
    ids = [rollout.rollout_id for rollout in rollouts]
    ended: dict[str, Rollout] = {}
    while len(ended) < len(ids):
        missing = [rollout_id for rollout_id in ids if rollout_id not in ended]
        newly_ended = await store.wait_for_rollouts(rollout_ids=missing, timeout=_LOOK_SECONDS)
        ended.update((rollout.rollout_id, rollout) for rollout in newly_ended)
        if newly_ended:
            on_progress(len(newly_ended))
    return [await _finished(store, ended[rollout_id], trained or TrainedCalls()) for rollout_id in ids]


async def read_rollouts(store: LightningStore, ids: Sequence[str], trained: TrainedCalls) -> list[FinishedRollout]:
    """Return rollouts that have ended, as `run_rollouts` does, in this order; without those that the store has lost."""
    rollouts = {rollout.rollout_id: rollout for rollout in await store.query_rollouts(rollout_id_in=list(ids))}
    return [await _finished(store, rollouts[rollout_id], trained) for rollout_id in ids if rollout_id in rollouts]


async def cancel_leftovers(store: LightningStore) -> int:
    """Cancel the rollouts that an interrupted run left in the queue or running; return their number."""
    leftovers = await store.query_rollouts(status_in=["queuing", "preparing", "running", "requeuing"])
    for rollout in leftovers:
        await store.update_rollout(rollout.rollout_id, status="cancelled")
    return len(leftovers)


def count_reasons(
    rollouts: Sequence[FinishedRollout],
    reason_of: Callable[[FinishedRollout], str | None],
    consequence: str,
    causes: CountedCauses | None,
) -> Counter[str]:
    """Count the rollouts that have a reason, by reason; log reasons that are not among the `causes` of the run yet.

    Args:
        consequence: what follows for these rollouts, for the log.
    """
    counts: Counter[str] = Counter()
    by_kind: dict[str, tuple[str, list[str]]] = {}
    for finished in rollouts:
        why = reason_of(finished)
        if why is not None:
            counts[why] += 1
            by_kind.setdefault(CountedCauses.kind(why), (why, []))[1].append(finished.rollout.rollout_id)
    known = CountedCauses() if causes is None else causes
    for reason, ids in by_kind.values():
        if known.add(reason, len(ids)):
            shown = ", ".join(ids[:_SHOWN_IDS]) + (", ..." if len(ids) > _SHOWN_IDS else "")
            logger.warning("%d of %d rollouts %s: %s (%s)", len(ids), len(rollouts), consequence, reason, shown)
    return counts


def counted_causes(reasons: Mapping[str, int]) -> CountedCauses:
    """Return reasons with their counts, those that differ only in numbers or ids together."""
    causes = CountedCauses()
    for reason, count in reasons.items():
        causes.add(reason, count)
    return causes


def refuse_failed(rollouts: Sequence[FinishedRollout]) -> None:
    """Check that at least one rollout was measured.

    Raises:
        RunFailedError: all of them failed; the message has the most frequent reason.
    """
    reasons = Counter(finished.unscored for finished in rollouts if finished.unscored is not None)
    if rollouts and reasons.total() == len(rollouts):
        raise RunFailedError(every(len(rollouts), "rollout"), counted_causes(reasons).counts)


async def _finished(store: LightningStore, rollout: Rollout, trained: TrainedCalls) -> FinishedRollout:
    spans = list(await store.query_spans(rollout.rollout_id, "latest", sort_by="sequence_id"))
    attempt = await store.get_latest_attempt(rollout.rollout_id)
    selection = trained.select(spans, trainable_agents_in(rollout.metadata or {}))
    refusals = [
        str(span.attributes.get(FAILURE_REASON))
        for span in spans
        if span.name == AGL_EXCEPTION and span.attributes.get("exception.type") == ROLLOUT_BUDGET_EXCEEDED
    ]
    over_budget = refusals[0] if refusals else None
    error = None if attempt is None else _failure_reason(attempt, rollout.config)
    finished = FinishedRollout(
        rollout=rollout,
        spans=spans,
        records=selection.records,
        reward=find_final_reward(spans),
        # Agents turn the refusal into different errors, so the gateway's reason is counted.
        error=error and (over_budget or error),
        untrained_calls=selection.why_empty,
        calls_left_out=sum(selection.left_out.values()),
        over_budget=over_budget,
        attempts=1 if attempt is None else attempt.sequence_id,
    )
    why = finished.untrainable if rollout.mode == "train" else finished.unscored
    if why is not None and rollout.status == "succeeded":
        metadata = {**(rollout.metadata or {}), UNTRAINED_KEY: why}
        await store.update_rollout(rollout.rollout_id, metadata=metadata)
    return finished


def _failure_reason(attempt: Attempt, config: RolloutConfig) -> str | None:
    """Return the runner's reason; where the store gave the attempt up before its runner did, the limit it passed."""
    reason = attempt.metadata.get("error")
    if reason is not None:
        return str(reason)
    if attempt.status == "timeout":
        return f"the agent took longer than timeout_seconds={config.timeout_seconds:g}, which `rollout_timeout` sets"
    if attempt.status == "unresponsive":
        return f"nothing was heard of its runner for unresponsive_seconds={config.unresponsive_seconds:g}"
    return None


def answer_rows(evaluation: Evaluation, step: int = 0) -> list[dict[str, Any]]:
    """Return a row for each rollout of a measurement, in order. Expressions are compared by algebra, in bounded time.

    Args:
        step: finished training steps.
    """
    rows = []
    for index, (finished, reward) in enumerate(zip(evaluation.rollouts, evaluation.rewards, strict=True)):
        task = finished.rollout.input
        number, sample = divmod(index, evaluation.samples)
        components = dict(finished.dimensions) if finished.unscored is None else {}
        answer = last_text(finished)
        correct = reward >= 1.0
        lenient = lenient_check(task, answer, components)
        if correct and lenient is not None:
            lenient = True  # a scorer may take other answers than the one that the task knows
        rows.append(
            {
                "evaluation": evaluation.name,
                "step": step,
                "problem": str(task["id"]) if isinstance(task, Mapping) and "id" in task else str(number),
                "hash": question_hash(task),
                "sample": sample,
                "reward": reward,
                "correct": correct,
                "lenient": lenient,
                "components": components if len(components) > 1 else {},
                "answer": None if answer is None else answer[-MAX_ANSWER:],
                "failed": finished.unscored,
            }
        )
    return rows


def question_hash(task: Any) -> str:
    """Return the identity of a task, independent of its answer and its place: 16 hexadecimal digits of the hash of its
    question, or of the whole task without one."""
    question = task.get("question") if isinstance(task, Mapping) else task
    text = question if isinstance(question, str) else json.dumps(task, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def lenient_check(task: Any, answer: str | None, components: Mapping[str, float]) -> bool | None:
    """Return True if an answer is right in any form; None if the task has no answer to compare with.

    A component `lenient` of the agent's reward decides. Without one, the last number, option or expression of the text
    is compared with the task's `answer` (`rewards.is_correct`), whatever text surrounds it.
    """
    if LENIENT in components:
        return components[LENIENT] >= 1
    gold = task.get("answer") if isinstance(task, Mapping) else None
    if gold is None:
        return None
    if answer is None:
        return False
    try:
        return is_correct(answer, gold)
    except ValueError:  # a gold answer that is no value
        return None


def last_text(finished: FinishedRollout) -> str | None:
    """Return the text of the last sampled message; None if there is none, or it is empty."""
    rows = TraceToMessages().adapt(finished.spans)
    content = rows[-1]["messages"][-1].get("content") if rows and rows[-1]["messages"] else None
    return content if isinstance(content, str) and content.strip() else None
