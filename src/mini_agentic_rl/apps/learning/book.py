"""Sessions in a store: open, look up, judge, compare and delete."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Any, Final, TypeVar

from ...gateway import SessionSettings
from ...semconv import AGL_ANNOTATION
from ...semconv import CompletionSpanAttributes as Call
from ...store import LightningStore
from ...types import PaginatedResult, Span
from .record import (
    ENDED_KEY,
    SESSION_KEY,
    Answer,
    SessionConflictError,
    SessionRecord,
    SessionRequestError,
    SessionReward,
    UnknownSessionError,
    all_rewards,
    answer_of,
    check_key_and_task,
    latest_rewards,
    read_record,
    reward_span,
    rollout_id_of,
)

T = TypeVar("T")

_LARGEST: Final = 1e9
"""Largest absolute reward: sums and squares stay finite."""
_MOST_REWARDS: Final = 1000
"""Rewards of a session and its answers, replaced ones included: all are read for each further one."""
_CALLS_PER_PAGE: Final = 8


@dataclass(frozen=True)
class Judgement:
    """A score for a session, or for one answer in it."""

    session_id: str
    score: float
    answer: Answer | None = None


class SessionBook:
    """Sessions in a store. A session belongs to the API key that opened it; no other key reaches it. Methods take the
    digest of the key (`owner_of`).

    Args:
        store: stores the sessions.
        settings: the default consent.
    """

    def __init__(self, store: LightningStore, settings: SessionSettings | None = None) -> None:
        self.store = store
        self.settings = settings or SessionSettings()

    async def open(
        self,
        owner: str,
        session_id: str | None = None,
        *,
        key: str = "",
        consent: bool | None = None,
        task: Any = None,
    ) -> SessionRecord | None:
        """Return the session of an id, opened if it does not exist. Without consent return None and store nothing.

        Args:
            owner: its owner.
            session_id: None makes an id.
            key: sessions with the same key are compared with each other.
            consent: whether its calls may be stored and learnt from; None takes the setting.
            task: a JSON value to store with it.

        Raises:
            SessionRequestError: the id, the key or the task is invalid.
        """
        session_id = secrets.token_hex(16) if session_id is None else session_id
        rollout_id = rollout_id_of(owner, session_id)
        if consent is False:
            return None
        record = await self._find(rollout_id)
        if record is not None:
            return record
        if consent is None and self.settings.consent == "ask":
            return None
        check_key_and_task(key, task)
        metadata = {SESSION_KEY: {"id": session_id, "owner": owner, "key": key}}
        try:
            return read_record(
                await self.store.start_rollout(task, mode="train", metadata=metadata, rollout_id=rollout_id)
            )
        except ValueError:  # another request opened it
            return await self._find(rollout_id)

    async def get(self, owner: str, session_id: str) -> SessionRecord:
        """Return a session.

        Raises:
            UnknownSessionError: the owner has no session of this id.
            SessionRequestError: the id is invalid.
        """
        record = await self._find(rollout_id_of(owner, session_id))
        if record is None:
            raise UnknownSessionError.of(session_id)
        return record

    async def owns(self, owner: str, rollout_id: str) -> bool:
        """Return True if a rollout is not the session of another owner."""
        record = await self._find(rollout_id)
        return record is None or record.owner == owner

    async def end(self, owner: str, session_id: str) -> SessionRecord:
        """Mark a session as ended, so that the learner's judge may score it.

        Raises:
            UnknownSessionError: the key has no session of this id.
        """
        record = await self.get(owner, session_id)
        if not record.ended:
            await self._change([record], self.store.update_attempt(*record.ids, metadata={ENDED_KEY: True}))
        return await self.get(owner, session_id)

    async def calls(self, record: SessionRecord, offset: int = 0) -> AsyncIterator[Span]:
        """Yield the spans of a session's calls in order, from `offset` on.

        They are read in small pages, because each call contains the whole conversation before it.
        """
        while True:
            page = await self._query_calls(record, limit=_CALLS_PER_PAGE, offset=offset)
            for span in page:
                yield span
            if len(page) < _CALLS_PER_PAGE:
                return
            offset += len(page)

    async def last_call(self, record: SessionRecord) -> Span | None:
        """Return the span of a session's last call; None before the first."""
        page = await self._query_calls(record, sort_order="desc", limit=1)
        return page[0] if page else None

    async def count_calls(self, record: SessionRecord) -> int:
        """Return the number of calls that a session has made."""
        return (await self._query_calls(record, limit=0)).total

    async def rewards(self, record: SessionRecord) -> dict[Answer | None, SessionReward]:
        """Return the rewards of a session and its answers."""
        return latest_rewards(await self._annotations(record))

    async def judge(self, owner: str, judgement: Judgement, *, replace: bool = False) -> SessionRecord:
        """Give a session, or one answer in it, an absolute reward.

        Raises:
            UnknownSessionError: the key has no session of this id.
            SessionRequestError: the reward is not finite or beyond a billion, or the session has no such answer.
            SessionConflictError: it has another reward and `replace` is not set, was learnt from, or made no call.
        """
        await self._judge(owner, [judgement], None, replace)
        return await self.get(owner, judgement.session_id)

    async def compare(self, owner: str, judgements: Sequence[Judgement], *, replace: bool = False) -> str:
        """Give sessions or answers scores that only compare them with each other; return the comparison's id.

        Either all scores are recorded or none.

        Raises:
            SessionRequestError: there are fewer than two, or two for the same answer; or as `judge` does.
            UnknownSessionError: one of the sessions is unknown.
            SessionConflictError: as `judge` does.
        """
        about = [(judgement.session_id, judgement.answer) for judgement in judgements]
        if len(about) < 2 or len(set(about)) < len(about):
            raise SessionRequestError(
                "a comparison is of two or more sessions or answers, each once", "comparison_invalid"
            )
        comparison = f"co-{secrets.token_hex(8)}"
        await self._judge(owner, judgements, comparison, replace)
        return comparison

    async def delete(self, owner: str, session_id: str) -> SessionRecord:
        """Delete a session with its calls, tokens and rewards; return its record before the deletion.

        Raises:
            UnknownSessionError: the key has no session of this id.
        """
        record = await self.get(owner, session_id)
        await self.store.delete_rollouts([record.rollout_id])
        return record

    async def _judge(self, owner: str, judgements: Sequence[Judgement], comparison: str | None, replace: bool) -> None:
        rewards: list[tuple[SessionRecord, SessionReward]] = []
        records: dict[str, SessionRecord] = {}
        for judgement in judgements:
            if not abs(judgement.score) <= _LARGEST:  # NaN is refused as well
                raise SessionRequestError(
                    f"the number for session {judgement.session_id!r} is {judgement.score}: it must be finite, and at "
                    f"most {_LARGEST:g}",
                    "reward_invalid",
                )
            record = await self.get(owner, judgement.session_id)
            reward = await self._next_reward(record, judgement, comparison, replace)
            records[record.rollout_id] = record
            if reward is not None:
                rewards.append((record, reward))
        judged = list(records.values())
        spans = [reward_span(*record.ids, reward) for record, reward in rewards]
        added = {span.span_id for span in await self._change(judged, self.store.add_many_spans(spans))}
        if len(added) < len(spans):
            recorded = [reward for reward, span in zip(rewards, spans, strict=True) if span.span_id in added]
            await self._change(judged, self._withdraw(recorded))
            raise SessionConflictError("somebody else judged it at the same time: look, and try again", "reward_set")
        for record in judged:  # last, so that a session with the status `judged` has its reward
            await self._change([record], self.store.update_attempt(*record.ids, status="succeeded"))

    async def _withdraw(self, rewards: Sequence[tuple[SessionRecord, SessionReward]]) -> None:
        """Withdraw the rewards of a comparison that could not be recorded completely."""
        spans = []
        for record, reward in rewards:
            recorded = all_rewards(await self._annotations(record))
            number = 1 + max(other.number for other in recorded if other.answer == reward.answer)
            spans.append(reward_span(*record.ids, changed(reward, number=number, withdraws=reward.number)))
        await self.store.add_many_spans(spans)

    async def _change(self, records: Sequence[SessionRecord], work: Awaitable[T]) -> T:
        """Return the result of a change of sessions.

        Raises:
            UnknownSessionError: a session was deleted meanwhile.
        """
        try:
            return await work
        except ValueError:
            for record in records:
                current = await self._find(record.rollout_id)
                if current is None or current.attempt_id != record.attempt_id:
                    raise UnknownSessionError.of(record.session_id) from None
            raise

    async def _next_reward(
        self, record: SessionRecord, judgement: Judgement, comparison: str | None, replace: bool
    ) -> SessionReward | None:
        """Return the reward to record; None if the same reward is recorded already."""
        if record.learnt is not None or record.skipped is not None:
            why = f"left it out: {record.skipped}" if record.skipped else f"learnt from it (version {record.learnt})"
            raise SessionConflictError(
                f"the learner has {why}: a reward for session {record.session_id!r} would change nothing",
                "session_learnt",
            )
        spans = await self._annotations(record)
        calls = await self.count_calls(record)
        if not calls:
            raise SessionConflictError(f"session {record.session_id!r} has made no call yet", "session_empty")
        about = judgement.answer
        if about is not None and not await self._has_answer(record, about):
            raise SessionRequestError(
                f"session {record.session_id!r} has no answer {about.call[:80]!r} with choice {about.choice}; "
                f"it has {calls} others",
                "answer_unknown",
            )
        known = latest_rewards(spans).get(about)
        before = all_rewards(spans)
        if len(before) >= _MOST_REWARDS:
            raise SessionConflictError(
                f"session {record.session_id!r} was judged {_MOST_REWARDS} times, and is not judged again",
                "reward_set",
            )
        if known is not None and not replace:
            if comparison is None and known.comparison is None and known.value == judgement.score:
                return None
            raise SessionConflictError(
                f"session {record.session_id!r} was given {known.value:g} before: set `replace` to replace it",
                "reward_set",
            )
        last = max((other.number for other in before if other.answer == about), default=0)
        next_id = self.store.get_next_span_sequence_id(*record.ids)
        return SessionReward(judgement.score, comparison, about, last + 1, await self._change([record], next_id))

    async def _has_answer(self, record: SessionRecord, answer: Answer) -> bool:
        async for call in self.calls(record):
            if answer_of(call) == answer:
                return True
        return False

    async def _query_calls(self, record: SessionRecord, **options: Any) -> PaginatedResult[Span]:
        return await self.store.query_spans(*record.ids, name=Call.SPAN_NAME, **options)

    async def _annotations(self, record: SessionRecord) -> Sequence[Span]:
        """Return the spans of a session that contain its rewards."""
        return await self.store.query_spans(*record.ids, name=AGL_ANNOTATION)

    async def _find(self, rollout_id: str) -> SessionRecord | None:
        rollout = await self.store.get_rollout_by_id(rollout_id)
        return None if rollout is None else read_record(rollout)
