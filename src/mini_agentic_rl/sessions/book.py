"""The book of sessions: opened, called under, judged and deleted, in any store."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..adapter import is_completion
from ..semconv import CompletionSpanAttributes as Call
from ..store import LightningStore
from ..types import Rollout, Span
from .errors import SessionConflictError, SessionRequestError, UnknownSessionError
from .record import METADATA_KEY, SessionRecord, checked_key, metadata_with, owner_of, read_record, rollout_id_of
from .rewards import Answer, SessionReward, latest_rewards, reward_span
from .settings import SessionSettings


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
        """Return the session of this id, which is begun if it is not there; None, and nothing is kept, without consent.

        Args:
            api_key: whose it is.
            session_id: None makes one.
            key: what it is compared under, where it is begun here.
            consent: whether its calls may be kept and learnt from; None leaves it to the settings.
            task: anything to be kept beside it, as JSON.

        Raises:
            SessionRequestError: the id or the key cannot be one.
        """
        owner, session_id = owner_of(api_key), session_id or secrets.token_hex(16)
        rollout_id = rollout_id_of(owner, session_id)
        found = await self._find(rollout_id)
        if consent is False:
            return None
        if found is not None:
            return read_record(found)
        if consent is None and self.settings.consent == "ask":
            return None
        facts = {"id": session_id, "owner": owner, "key": checked_key(key)}
        async with self._opening:  # two first calls of one session may come at once
            found = await self._find(rollout_id)
            if found is None:
                try:
                    found = await self.store.start_rollout(
                        task, mode="train", metadata={METADATA_KEY: facts}, rollout_id=rollout_id
                    )
                except ValueError:  # another process has begun it
                    found = await self._find(rollout_id)
        return None if found is None else read_record(found)

    async def get(self, api_key: str, session_id: str) -> SessionRecord:
        """Return a session.

        Raises:
            UnknownSessionError: there is none of this id and key.
            SessionRequestError: the id cannot be one.
        """
        return (await self._known(owner_of(api_key), session_id))[1]

    async def owns(self, api_key: str, rollout_id: str) -> bool:
        """Return True if a rollout is not the session of another key."""
        found = await self._find(rollout_id)
        record = None if found is None else read_record(found)
        return record is None or record.owner == owner_of(api_key)

    async def end(self, api_key: str, session_id: str) -> SessionRecord:
        """Note that the agent is done; a judge of groups looks at such sessions.

        Raises:
            UnknownSessionError: there is none of this id and key.
        """
        rollout, record = await self._known(owner_of(api_key), session_id)
        if not record.ended:
            rollout = await self.store.update_rollout(rollout.rollout_id, metadata=metadata_with(rollout, ended=True))
        return await self.get(api_key, session_id)

    async def calls(self, record: SessionRecord) -> list[Span]:
        """Return the spans of a session's calls, in order."""
        spans = await self.store.query_spans(record.rollout_id, record.attempt_id)
        return [span for span in spans if is_completion(span)]

    async def rewards(self, record: SessionRecord) -> dict[Answer | None, SessionReward]:
        """Return the rewards of a session and its answers."""
        return latest_rewards(list(await self.store.query_spans(record.rollout_id, record.attempt_id)))

    async def judge(self, api_key: str, judgement: Judgement, *, replace: bool = False) -> SessionRecord:
        """Give a session, or one answer in it, a number that stands by itself.

        Raises:
            UnknownSessionError: there is none of this id and key.
            SessionRequestError: the number is not finite, or the session has no such answer.
            SessionConflictError: it has another number and `replace` is not set, was learnt from, or made no call.
        """
        await self._judge(owner_of(api_key), [judgement], None, replace)
        return await self.get(api_key, judgement.session_id)

    async def compare(self, api_key: str, judgements: Sequence[Judgement], *, replace: bool = False) -> str:
        """Give sessions or answers numbers that mean something beside each other alone; return the comparison's id.

        All of them are given, or none.

        Raises:
            SessionRequestError: there are fewer than two, or two of the same; or as `judge` does.
            UnknownSessionError: one of the sessions is unknown.
            SessionConflictError: as `judge` does.
        """
        return await self.compare_of(owner_of(api_key), judgements, replace=replace)

    async def compare_of(self, owner: str, judgements: Sequence[Judgement], *, replace: bool = False) -> str:
        """Compare sessions of an owner, as the learner's judge does, who has no key; see `compare`."""
        about = [(judgement.session_id, judgement.answer) for judgement in judgements]
        if len(about) < 2 or len(set(about)) < len(about):
            raise SessionRequestError(
                "a comparison is of two or more sessions or answers, each once", "comparison_invalid"
            )
        comparison = f"co-{secrets.token_hex(8)}"
        await self._judge(owner, judgements, comparison, replace)
        return comparison

    async def delete(self, api_key: str, session_id: str) -> SessionRecord:
        """Delete a session with its calls, tokens and rewards; what it was tells whether it had been learnt from.

        Raises:
            UnknownSessionError: there is none of this id and key.
        """
        _, record = await self._known(owner_of(api_key), session_id)
        await self.store.delete_rollouts([record.rollout_id])
        return record

    async def _judge(self, owner: str, judgements: Sequence[Judgement], comparison: str | None, replace: bool) -> None:
        spans, rollouts = [], {}
        for judgement in judgements:
            if not math.isfinite(judgement.score):
                raise SessionRequestError(
                    f"the number for session {judgement.session_id!r} is {judgement.score}: it must be finite",
                    "reward_invalid",
                )
            rollout, record = await self._known(owner, judgement.session_id)
            reward = await self._next_reward(record, judgement, comparison, replace)
            rollouts[rollout.rollout_id] = record
            if reward is not None:
                spans.append(reward_span(record.rollout_id, record.attempt_id, reward))
        if spans and len(await self.store.add_many_spans(spans)) < len(spans):
            raise SessionConflictError("somebody else judged it at the same time: look, and try again", "reward_set")
        for record in rollouts.values():  # the last, so that who reads a judged session finds its reward
            await self.store.update_attempt(record.rollout_id, record.attempt_id, status="succeeded")

    async def _next_reward(
        self, record: SessionRecord, judgement: Judgement, comparison: str | None, replace: bool
    ) -> SessionReward | None:
        """Return what to record; None where it is recorded already."""
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
        spans = list(await self.store.query_spans(record.rollout_id, record.attempt_id))
        answers = {_answer_of(span) for span in spans if is_completion(span)}
        if not answers:
            raise SessionConflictError(f"session {record.session_id!r} has made no call yet", "session_empty")
        about = None if judgement.answer is None else Answer(judgement.answer.call, judgement.answer.choice)
        if about is not None and about not in answers:
            raise SessionRequestError(
                f"session {record.session_id!r} has no answer {judgement.answer.response_id!r} "  # type: ignore[union-attr]  # about is made of it
                f"with choice {about.choice}; it has {len(answers)} others",
                "answer_unknown",
            )
        known = latest_rewards(spans).get(about)
        if known is not None and not replace:
            if comparison is None and known.comparison is None and known.value == judgement.score:
                return None
            raise SessionConflictError(
                f"session {record.session_id!r} was given {known.value:g} before: say so with replace, if this is to "
                "take its place",
                "reward_set",
            )
        number = await self.store.get_next_span_sequence_id(record.rollout_id, record.attempt_id)
        return SessionReward(judgement.score, comparison, about, 1 if known is None else known.number + 1, number)

    async def _known(self, owner: str, session_id: str) -> tuple[Rollout, SessionRecord]:
        rollout = await self._find(rollout_id_of(owner, session_id))
        record = None if rollout is None else read_record(rollout)
        if rollout is None or record is None:
            raise UnknownSessionError(session_id)
        return rollout, record

    async def _find(self, rollout_id: str) -> Rollout | None:
        return await self.store.get_rollout_by_id(rollout_id)


def told(record: SessionRecord, rewards: Mapping[Answer | None, SessionReward], calls: int) -> dict[str, Any]:
    """Return a session as JSON."""
    return {
        "object": "session",
        "id": record.session_id,
        "key": record.key,
        "status": record.status,
        "opened": record.opened,
        "calls": calls,
        "learnt_in": record.learnt,
        "skipped": record.skipped,
        "rewards": [
            {
                "reward": reward.value,
                "comparison": reward.comparison,
                "response_id": None if reward.answer is None else reward.answer.response_id,
                "choice": None if reward.answer is None else reward.answer.choice,
            }
            for reward in rewards.values()
        ],
    }


def _answer_of(span: Span) -> Answer:
    response = Answer(str(span.attributes.get(Call.RESPONSE_ID, "")))
    choice = span.attributes.get(Call.CHOICE_INDEX, 0)
    return Answer(response.call, int(choice) if isinstance(choice, int) else 0)


def transcript(calls: Sequence[Span]) -> str:
    """Return a conversation as text: what the last call was shown, and what it answered."""
    if not calls:
        return ""
    facts = calls[-1].attributes
    shown = json.loads(str(facts.get(Call.INPUT_MESSAGES, "[]")))
    return json.dumps([*shown, json.loads(str(facts.get(Call.OUTPUT_MESSAGES, "null")))], ensure_ascii=False)
