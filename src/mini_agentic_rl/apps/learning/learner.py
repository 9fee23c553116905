"""The learner from use: it takes judged sessions, takes a step, publishes the weights and marks the sessions.

A session is claimed before its step and marked after it. A session that was deleted before the claim is not used; a
later deletion returns the claim. A published version contains the ids of its sessions: a learner that was killed
between publishing and marking marks them when it starts again, so that no session is learnt from twice.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

from transformers import PreTrainedTokenizerBase

from ...adapter import TrainedCalls
from ...algorithm.advantages import uncompared
from ...algorithm.batch import TrainingBatch, make_batch
from ...algorithm.groups import Group, Trajectory
from ...algorithm.grpo import take_steps
from ...algorithm.settings import GRPOSettings
from ...files import read_json
from ...gateway import save_kept_tokenizer
from ...metrics import MetricsLogger
from ...policy import LearnerSettings, Policy, load_weights, save_weights
from ...store import LightningStore
from .command import UseSettings
from .record import SESSION_KEY, read_record
from .use import UseFolder
from .waiting import Baselines, JudgedSession, Lesson, WaitingSessions, advantages, choose, read_session

logger = logging.getLogger(__name__)

_PAGE: Final = 256
_READ_AT_ONCE: Final = 256
"""Sessions that are read between two looks at whether they are enough."""
_OVERLAP_SECONDS: Final = 60.0
"""Overlap of two looks for judged sessions, because a store may show a write with a delay."""


class UseLearner:
    """Learns from the sessions of a store. Used from one event loop; one at a time for each folder.

    Args:
        policy: the policy to train; a server may sample with the same object.
        store: store of the sessions.
        folder: folder in which versions are published.
        models: names of the policy; calls of other models are not learnt from.
        settings: time and size of a step.
        loop: settings of the update; see `use_loop`.
        learner: settings of the optimizer.
        metrics: logger of each step.
        tokenizer: tokenizer of the model, saved with a version if it determines the format of tool calls.
    """

    def __init__(
        self,
        policy: Policy,
        store: LightningStore,
        folder: UseFolder,
        models: Collection[str],
        *,
        settings: UseSettings | None = None,
        loop: GRPOSettings,
        learner: LearnerSettings | None = None,
        metrics: MetricsLogger | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
    ) -> None:
        self.policy = policy
        self.store = store
        self.folder = folder
        self.settings = settings or UseSettings()
        self.baselines = Baselines()
        self._trained = TrainedCalls(models=frozenset(models))
        self._loop = loop
        self._adapter = policy.model.adapters[0]
        self._learner = policy.run(lambda: policy.learner(learner or LearnerSettings(), self._adapter))
        self._metrics = metrics or MetricsLogger()
        self._tokenizer = tokenizer
        self._waiting = WaitingSessions()
        self._seen_until = 0.0

    async def resume(self) -> None:
        """Continue from the newest version, if any: load weights, optimizer and baselines, and mark its sessions."""
        published = self.folder.published()
        if published is None:
            return

        def restore() -> None:
            load_weights(self.policy.model, published.folder / "adapter", self._adapter)
            self._learner.load_state(published.folder / "optimizer.pt")

        await self.policy.run_async(restore)
        state = read_json(published.folder / "state.json")
        self.baselines = Baselines.of(state["baselines"])
        self._seen_until = state.get("judged_since", 0.0)
        for rollout_id, attempt_id in state["sessions"]:
            await self._mark(rollout_id, attempt_id, learnt=published.version)

    async def turn(self) -> dict[str, float] | None:
        """Take one step if enough sessions are ready; return its metrics, or None."""
        await self._look()
        version = self.policy.model.version(self._adapter)
        chosen = await self._chosen(version)
        if chosen is None:
            return None
        taken = [session for session in chosen if await self._mark(*session.record.ids, learning=version + 1)]
        lessons = [lesson for session in taken for lesson in session.lessons]
        compared = advantages(lessons, self.baselines)
        batch = _batch(compared, self._loop)
        for lesson in lessons:
            if lesson.comparison is None:
                self.baselines.add(lesson.group, lesson.value)
        metrics = (
            {} if batch is None else await self.policy.learn_async(lambda: take_steps(self._learner, batch, self._loop))
        )
        after = self.policy.model.version(self._adapter)
        if after > version:
            await self.policy.run_async(lambda: self.folder.publish(after, lambda at: self._write(at, taken)))
        await self._settle(taken, after if after > version else None)
        metrics |= _about(lessons, compared, version) | {"version": float(after), "waiting": float(len(self._waiting))}
        self._metrics.log(metrics, step=after)
        return metrics

    async def _look(self) -> None:
        """Note the sessions that were judged since the last look."""
        offset, newest = 0, self._seen_until
        while True:
            page = await self.store.query_rollouts(
                status_in=["succeeded"], sort_by="end_time", sort_order="desc", limit=_PAGE, offset=offset
            )
            for rollout in page:
                newest = max(newest, rollout.end_time or 0.0)
                if (record := read_record(rollout)) is not None and record.status == "judged":
                    self._waiting.note(record.rollout_id, rollout.end_time or 0.0)
            offset += len(page)
            oldest = min((rollout.end_time or 0.0 for rollout in page), default=0.0)
            if len(page) < _PAGE or oldest < self._seen_until - _OVERLAP_SECONDS:
                break
        self._seen_until = newest

    async def _chosen(self, version: int) -> list[JudgedSession] | None:
        """Return the sessions of the next step; None if too few are ready. Those that are left out are marked."""
        settings, waiting = self.settings, self._waiting
        while True:
            if not waiting.unread:
                waiting.seek_others()
            chosen, skipped = choose(
                waiting.read.values(),
                self.baselines,
                settings.max_sessions,
                version=version,
                max_age=settings.max_age,
                all_read=not waiting.unread,
            )
            for (rollout_id, attempt_id), why in skipped.items():
                await self._mark(rollout_id, attempt_id, skipped=why)
                waiting.forget(rollout_id)
                logger.info("session of rollout %s is left out: %s", rollout_id, why)
            if len(chosen) >= settings.min_sessions:
                sessions, changed = await self._read([session.record.rollout_id for session in chosen])
                if not changed:
                    return sessions
            elif waiting.unread:
                await self._read(sorted(waiting.unread, key=waiting.unread.__getitem__)[:_READ_AT_ONCE])
            elif not skipped:
                return None

    async def _read(self, rollout_ids: Sequence[str]) -> tuple[list[JudgedSession], bool]:
        """Read sessions in the order in which they were judged; also return True if any of them has changed. Deleted
        sessions are forgotten."""
        sessions: list[JudgedSession] = []
        missing = set(rollout_ids)
        changed = False
        for rollout in await self.store.query_rollouts(rollout_id_in=list(rollout_ids)):
            record = read_record(rollout)
            if record is not None and record.status == "judged":
                spans = list(await self.store.query_spans(record.rollout_id, record.attempt_id))
                session = read_session(record, rollout.end_time or 0.0, spans, self._trained)
                changed |= self._waiting.keep(session)
                sessions.append(session)
                missing.discard(rollout.rollout_id)
        for rollout_id in missing:
            self._waiting.forget(rollout_id)
        return sorted(sessions, key=lambda session: session.judged_at), changed or bool(missing)

    def _write(self, folder: Path, taken: Sequence[JudgedSession]) -> None:
        save_weights(self.policy.model, folder / "adapter", self._adapter)
        if self._tokenizer is not None:
            save_kept_tokenizer(self._tokenizer, folder)
        self._learner.save_state(folder / "optimizer.pt")
        waiting_since = self._waiting.since()
        state: dict[str, Any] = {
            "baselines": self.baselines.state(),
            "sessions": [session.record.ids for session in taken],
            # From here a learner that continues looks for judged sessions.
            "judged_since": self._seen_until if waiting_since is None else min(waiting_since, self._seen_until),
        }
        (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")

    async def _settle(self, taken: Sequence[JudgedSession], version: int | None) -> None:
        why = "its reward is what was expected, so there is nothing to learn"
        facts: dict[str, Any] = {"skipped": why} if version is None else {"learnt": version}
        for session in taken:
            await self._mark(*session.record.ids, **facts)
            self._waiting.forget(session.record.rollout_id)

    async def _mark(self, rollout_id: str, attempt_id: str, **facts: Any) -> bool:
        """Note something about a session; False if it was deleted, though another may have taken its id since."""
        rollout = await self.store.get_rollout_by_id(rollout_id)
        record = None if rollout is None else read_record(rollout)
        if rollout is None or record is None or record.attempt_id != attempt_id:
            return False
        metadata = dict(rollout.metadata or {})
        metadata[SESSION_KEY] = {**metadata[SESSION_KEY], **facts}
        try:
            await self.store.update_rollout(rollout_id, metadata=metadata)
        except ValueError:
            return False
        return True


def _batch(compared: Sequence[tuple[Lesson, float]], loop: GRPOSettings) -> TrainingBatch | None:
    """Return the batch of a step: each lesson is a trajectory whose reward is its advantage."""
    groups = [
        Group(lesson.group, [Trajectory(lesson.record.rollout_id, lesson.records, advantage)])
        for lesson, advantage in compared
        if advantage != 0
    ]
    return make_batch(
        groups,
        uncompared,
        loop.loss_aggregation,
        max_length=loop.max_trajectory_tokens,
        mask_truncated=loop.mask_truncated,
        keep_zero_advantage=False,
        compared=False,
    )


def _about(lessons: Sequence[Lesson], compared: Sequence[tuple[Lesson, float]], version: int) -> dict[str, float]:
    absolute = [lesson.value for lesson in lessons if lesson.comparison is None]
    ages = [version - call.version for lesson in lessons for call in lesson.records]
    metrics = {
        "sessions": float(len({lesson.record.rollout_id for lesson in lessons})),
        "lessons": float(len(lessons)),
        "lessons/with_signal": float(sum(advantage != 0 for _, advantage in compared)),
        "age/max": float(max(ages, default=0)),
    }
    return metrics | ({"reward/mean": sum(absolute) / len(absolute)} if absolute else {})
