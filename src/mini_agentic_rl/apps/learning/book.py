"""The book of sessions: opened, called under, judged and deleted, in any store."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Any, Final, TypeVar

from ...gateway import SessionSettings
from ...semconv import AGL_ANNOTATION
from ...semconv import CompletionSpanAttributes as Call
from ...store import LightningStore
from ...types import PaginatedResult, Rollout, Span
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
    owner_of,
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
    """Score of one session, or of one answer in it, as somebody gives it."""

    session_id: str
    score: float
    answer: Answer | None = None


class SessionBook:
    """Sessions in a store, by the API key of whoever opened them: nobody reaches those of another key.

    Args:
        store: where they are kept.
        settings: consent.
    """

    def __init__(self, store: LightningStore, settings: SessionSettings | None = None) -> None:
        self.store = store
        self.settings = settings or SessionSettings()
        self._opening = asyncio.Lock()

    async def open(
        self,
        api_key: str,
        session_id: str | None = None,
        *,
        key: str = "",
        consent: bool | None = None,
        task: Any = None,
    ) -> SessionRecord | None:
        """Return the session of this id, opened if it does not exist; None without consent, and then nothing is stored.

        Args:
            api_key: whose it is.
            session_id: None makes one.
            key: what it is compared under, where it is begun here.
            consent: whether its calls may be kept and learnt from; None leaves it to the settings.
            task: anything to be kept beside it, as JSON.

        Raises:
            SessionRequestError: the id, the key or the task cannot be one.
        """
        owner, session_id = owner_of(api_key), secrets.token_hex(16) if session_id is None else session_id
        rollout_id = rollout_id_of(owner, session_id)
        rollout = await self._find(rollout_id)
        if consent is False:
            return None
        if rollout is not None:
            return read_record(rollout)
        if consent is None and self.settings.consent == "ask":
            return None
        check_key_and_task(key, task)
        facts = {"id": session_id, "owner": owner, "key": key}
        async with self._opening:  # two first calls of one session may come at once
            rollout = await self._find(rollout_id)
            if rollout is None:
                try:
                    rollout = await self.store.start_rollout(
                        task, mode="train", metadata={SESSION_KEY: facts}, rollout_id=rollout_id
                    )
                except ValueError:  # another process has begun it
                    rollout = await self._find(rollout_id)
        return None if rollout is None else read_record(rollout)

    async def get(self, api_key: str, session_id: str) -> SessionRecord:
        """Return a session.

        Raises:
            UnknownSessionError: there is none of this id and key.
            SessionRequestError: the id cannot be one.
        """
        return (await self._known(owner_of(api_key), session_id))[1]

    async def owns(self, api_key: str, rollout_id: str) -> bool:
        """Return True if a rollout is not the session of another key."""
        rollout = await self._find(rollout_id)
        record = None if rollout is None else read_record(rollout)
        return record is None or record.owner == owner_of(api_key)

    async def end(self, api_key: str, session_id: str) -> SessionRecord:
        """Note that the agent is done; a judge of groups looks at such sessions.

        Raises:
            UnknownSessionError: there is none of this id and key.
        """
        record = await self.get(api_key, session_id)
        if not record.ended:
            over = self.store.update_attempt(record.rollout_id, record.attempt_id, metadata={ENDED_KEY: True})
            await self._of_one_that_is_there([record], over)
        return await self.get(api_key, session_id)

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

    async def judge(self, api_key: str, judgement: Judgement, *, replace: bool = False) -> SessionRecord:
        """Give a session, or one answer in it, an absolute reward.

        Raises:
            UnknownSessionError: there is none of this id and key.
            SessionRequestError: the number is not finite or beyond a billion, or the session has no such answer.
            SessionConflictError: it has another number and `replace` is not set, was learnt from, or made no call.
        """
        await self._judge(owner_of(api_key), [judgement], None, replace)
        return await self.get(api_key, judgement.session_id)

    async def compare(self, api_key: str, judgements: Sequence[Judgement], *, replace: bool = False) -> str:
        """Give sessions or answers scores that only compare them with each other; return the comparison's id.

        All of them are given, or none.

        Raises:
            SessionRequestError: there are fewer than two, or two of the same; or as `judge` does.
            UnknownSessionError: one of the sessions is unknown.
            SessionConflictError: as `judge` does.
        """
        return await self.compare_of(owner_of(api_key), judgements, replace=replace)

    async def compare_of(self, owner: str, judgements: Sequence[Judgement], *, replace: bool = False) -> str:
        """Compare sessions of an owner, for the learner's judge, which has no API key; see `compare`."""
        about = [
            (judgement.session_id, None if judgement.answer is None else judgement.answer.of_the_call)
            for judgement in judgements
        ]
        if len(about) < 2 or len(set(about)) < len(about):
            raise SessionRequestError(
                "a comparison is of two or more sessions or answers, each once", "comparison_invalid"
            )
        comparison = f"co-{secrets.token_hex(8)}"
        await self._judge(owner, judgements, comparison, replace)
        return comparison

    async def delete(self, api_key: str, session_id: str) -> SessionRecord:
        """Delete a session with its calls, tokens and rewards; return its record before the deletion.

        Raises:
            UnknownSessionError: there is none of this id and key.
        """
        _, record = await self._known(owner_of(api_key), session_id)
        await self.store.delete_rollouts([record.rollout_id])
        return record

    async def _judge(self, owner: str, judgements: Sequence[Judgement], comparison: str | None, replace: bool) -> None:
        given: list[tuple[SessionRecord, SessionReward]] = []
        records: dict[str, SessionRecord] = {}
        for judgement in judgements:
            if not abs(judgement.score) <= _LARGEST:  # NaN is refused as well
                raise SessionRequestError(
                    f"the number for session {judgement.session_id!r} is {judgement.score}: it must be finite, and at "
                    f"most {_LARGEST:g}",
                    "reward_invalid",
                )
            _, record = await self._known(owner, judgement.session_id)
            reward = await self._next_reward(record, judgement, comparison, replace)
            records[record.rollout_id] = record
            if reward is not None:
                given.append((record, reward))
        there = list(records.values())
        spans = [reward_span(record.rollout_id, record.attempt_id, reward) for record, reward in given]
        added = {span.span_id for span in await self._of_one_that_is_there(there, self.store.add_many_spans(spans))}
        if len(added) < len(spans):
            mine = [one for one, span in zip(given, spans, strict=True) if span.span_id in added]
            await self._of_one_that_is_there(there, self._withdraw(mine))
            raise SessionConflictError("somebody else judged it at the same time: look, and try again", "reward_set")
        for record in there:  # the last, so that who reads a judged session finds its reward
            judged = self.store.update_attempt(record.rollout_id, record.attempt_id, status="succeeded")
            await self._of_one_that_is_there([record], judged)

    async def _withdraw(self, given: Sequence[tuple[SessionRecord, SessionReward]]) -> None:
        """Withdraw the rewards of a comparison that could not be recorded completely."""
        spans = []
        for record, reward in given:
            number = 1 + max(
                one.number for one in all_rewards(await self._annotations(record)) if one.answer == reward.answer
            )
            withdrawn = changed(reward, number=number, withdraws=reward.number)
            spans.append(reward_span(record.rollout_id, record.attempt_id, withdrawn))
        await self.store.add_many_spans(spans)

    async def _of_one_that_is_there(self, records: Sequence[SessionRecord], work: Awaitable[T]) -> T:
        """Await a change of sessions and return its result.

        Raises:
            UnknownSessionError: one of them was deleted meanwhile.
        """
        try:
            return await work
        except ValueError:
            for record in records:
                rollout = await self._find(record.rollout_id)
                current = None if rollout is None else read_record(rollout)
                if current is None or current.attempt_id != record.attempt_id:
                    raise UnknownSessionError(record.session_id) from None
            raise

    async def _next_reward(
        self, record: SessionRecord, judgement: Judgement, comparison: str | None, replace: bool
    ) -> SessionReward | None:
        """Return the reward to record; None if the same reward is recorded already."""
        if record.learnt is not None or record.skipped is not None:
            why = (
                f"learnt from it (version {record.learnt})"
                if record.skipped is None
                else f"left it out: {record.skipped}"
            )
            raise SessionConflictError(
                f"the learner has {why}: what session {record.session_id!r} is given now would change nothing",
                "session_learnt",
            )
        spans = await self._annotations(record)
        calls = await self.count_calls(record)
        if not calls:
            raise SessionConflictError(f"session {record.session_id!r} has made no call yet", "session_empty")
        about = None if judgement.answer is None else judgement.answer.of_the_call
        if about is not None and not await self._has_answer(record, about):
            raise SessionRequestError(
                f"session {record.session_id!r} has no answer {about.response_id[:80]!r} with choice {about.choice}; "
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
                f"session {record.session_id!r} was given {known.value:g} before: say so with replace, if this is to "
                "take its place",
                "reward_set",
            )
        number = await self._of_one_that_is_there(
            [record], self.store.get_next_span_sequence_id(record.rollout_id, record.attempt_id)
        )
        last = max((one.number for one in before if one.answer == about), default=0)
        return SessionReward(judgement.score, comparison, about, last + 1, number)

    async def _has_answer(self, record: SessionRecord, answer: Answer) -> bool:
        async for call in self.calls(record):
            if answer_of(call) == answer:
                return True
        return False

    async def _known(self, owner: str, session_id: str) -> tuple[Rollout, SessionRecord]:
        rollout = await self._find(rollout_id_of(owner, session_id))
        record = None if rollout is None else read_record(rollout)
        if rollout is None or record is None:
            raise UnknownSessionError(session_id)
        return rollout, record

    async def _query_calls(self, record: SessionRecord, **options: Any) -> PaginatedResult[Span]:
        return await self.store.query_spans(record.rollout_id, record.attempt_id, name=Call.SPAN_NAME, **options)

    async def _annotations(self, record: SessionRecord) -> Sequence[Span]:
        """Return the spans of a session that contain its rewards."""
        return await self.store.query_spans(record.rollout_id, record.attempt_id, name=AGL_ANNOTATION)

    async def _find(self, rollout_id: str) -> Rollout | None:
        return await self.store.get_rollout_by_id(rollout_id)
