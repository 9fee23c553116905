"""The record of a session, stored in the metadata of its rollout, and its rewards, stored as spans.

The id of the rollout is a hash of the owner's key and the session's id, so that every process finds a session without a
search, and only with its key.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...emitter import get_reward_value
from ...errors import UserError
from ...semconv import AGL_ANNOTATION, LightningSpanAttributes
from ...semconv import CompletionSpanAttributes as Call
from ...types import Attributes, Rollout, Span, TraceStatus


class SessionError(UserError):
    """A request about a session fails.

    Args:
        text: the error and its remedy.
        code: identifier of the error, for programs.
    """

    def __init__(self, text: str, code: str) -> None:
        super().__init__(text)
        self.code = code


class SessionRequestError(SessionError):
    """The request has an invalid id, reward or answer."""


class UnknownSessionError(SessionError):
    """No such session is recorded for the key."""

    @classmethod
    def of(cls, session_id: str) -> UnknownSessionError:
        """Return the error for a session's id."""
        return cls(
            f"no session {session_id!r} is recorded under this key: it was not opened, had no consent, made no call, "
            "or was deleted",
            "session_unknown",
        )


class SessionConflictError(SessionError):
    """The state of the session does not allow the change."""


SESSION_KEY: Final = "session"
"""Key of a rollout's metadata with the session's fields and the learner's marks."""
ENDED_KEY: Final = "session_ended"
"""Key of the attempt's metadata, which the learner does not write, so that concurrent writes do not conflict."""
KEY_LENGTH: Final = 500
"""Most characters of a key."""
TASK_LENGTH: Final = 32 * 1024
"""Most characters of a task, as JSON."""
_PREFIX: Final = "se-"
_ID: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._:@=+-]{1,128}")
"""A URL with "." or ".." in it names another path."""


@dataclass(frozen=True)
class SessionRecord:
    """State of a session."""

    session_id: str
    owner: str
    """Digest of the API key that opened it."""
    key: str
    """Sessions of one key are compared with each other."""
    rollout_id: str
    attempt_id: str
    opened: float
    """Seconds since the epoch."""
    ended: bool = False
    """True once its agent has ended it."""
    judged: bool = False
    learning: int | None = None
    """Version of the policy whose step uses it, or is about to."""
    learnt: int | None = None
    """Version of the policy that has learnt from it."""
    skipped: str | None = None
    """Reason for which it will not be learnt from."""

    @property
    def ids(self) -> tuple[str, str]:
        """The ids of its rollout and attempt. A session that is opened again after its deletion has the same rollout id
        and another attempt."""
        return self.rollout_id, self.attempt_id

    @property
    def status(self) -> str:
        """`open`, `ended`, `judged`, `learnt` or `skipped`."""
        if self.learnt is not None:
            return "learnt"
        if self.skipped is not None:
            return "skipped"
        return "judged" if self.judged else "ended" if self.ended else "open"


def owner_of(api_key: str) -> str:
    """Return the owner's name for an API key, a digest."""
    return hashlib.blake2b(api_key.encode(), digest_size=12, person=b"session-owner").hexdigest()


def rollout_id_of(owner: str, session_id: str) -> str:
    """Return the id of the session's rollout.

    Raises:
        SessionRequestError: the session's id is too long or has an invalid character.
    """
    if not _ID.fullmatch(session_id):
        raise SessionRequestError(
            "a session's id has 1 to 128 letters, digits and . _ : @ = + -, and is neither . nor ..",
            "session_id_invalid",
        )
    return _PREFIX + hashlib.blake2b(f"{owner}/{session_id}".encode(), digest_size=16).hexdigest()


def is_session(rollout_id: str) -> bool:
    """Return True if a rollout of this id can be a session."""
    return rollout_id.startswith(_PREFIX)


def check_key_and_task(key: str, task: Any) -> None:
    """Check the key that a session is compared under, and the task that is stored with it.

    Raises:
        SessionRequestError: one of them is too long, or the task is no JSON.
    """
    if len(key) > KEY_LENGTH:
        raise SessionRequestError(f"a session's key has at most {KEY_LENGTH} characters", "session_key_invalid")
    try:
        length = len(json.dumps(task))
    except (TypeError, ValueError, RecursionError) as error:
        raise SessionRequestError(f"a session's task is kept as JSON: {error}", "session_task_invalid") from None
    if length > TASK_LENGTH:
        raise SessionRequestError(
            f"a session's task has at most {TASK_LENGTH} characters of JSON, not {length}", "session_task_invalid"
        )


def read_record(rollout: Rollout) -> SessionRecord | None:
    """Return the session of a rollout; None for a rollout that is no session."""
    facts = (rollout.metadata or {}).get(SESSION_KEY)
    attempt = getattr(rollout, "attempt", None)
    if not isinstance(facts, Mapping) or attempt is None:
        return None
    return SessionRecord(
        session_id=str(facts["id"]),
        owner=str(facts["owner"]),
        key=str(facts["key"]),
        rollout_id=rollout.rollout_id,
        attempt_id=attempt.attempt_id,
        opened=rollout.start_time,
        ended=bool((attempt.metadata or {}).get(ENDED_KEY)),
        judged=rollout.status == "succeeded",
        learning=facts.get("learning"),
        learnt=facts.get("learnt"),
        skipped=facts.get("skipped"),
    )


# The rewards of a session, and of single answers in it, are spans of the session.
#
# Each is an annotation with a reward of the whole rollout, as `emit_reward(…, final=True)` writes it, so that every
# reader of rewards understands it. Further attributes name its comparison, if its number only compares it with others,
# and its answer, if it is not for the session.
#
# Of several rewards for the same answer or session the last counts. The span id is a hash of its number among them, so
# that the store accepts only one of two concurrent rewards. A withdrawn reward does not count but keeps its number.


COMPARISON: Final = "agentlightning.session.comparison"
RESPONSE_ID: Final = "agentlightning.session.response_id"
CHOICE: Final = "agentlightning.session.choice"
_NUMBER: Final = "agentlightning.session.reward"
_WITHDRAWS: Final = "agentlightning.session.withdraws"


@dataclass(frozen=True)
class Answer:
    """One answer of a session."""

    call: str
    """Part of the response's id that is the same in all dialects."""
    choice: int = 0
    """Its index if the call returned several answers."""

    @classmethod
    def of(cls, response_id: Any, choice: Any = 0) -> Answer:
        """Return the answer of a response, whose id may be that of any dialect."""
        call = str(response_id).rpartition("_")[2].rpartition("-")[2]
        return cls(call, choice if isinstance(choice, int) else 0)


@dataclass(frozen=True)
class SessionReward:
    """The reward of a session, or of one answer in it."""

    value: float
    comparison: str | None
    """Id of its comparison; None for an absolute reward."""
    answer: Answer | None
    number: int
    """Counts the rewards for the same answer or session, from 1."""
    sequence_id: int
    """The reward is for the calls before it."""
    withdraws: int | None = None
    """Number of an earlier reward that this one withdraws; neither counts."""


def latest_rewards(spans: Sequence[Span]) -> dict[Answer | None, SessionReward]:
    """Return the valid rewards of a session by the answer that they are for; the key None is the session."""
    latest: dict[Answer | None, SessionReward] = {}
    rewards = all_rewards(spans)
    withdrawn = {
        (reward.answer, number)
        for reward in rewards
        if reward.withdraws is not None
        for number in (reward.number, reward.withdraws)
    }
    for reward in rewards:
        known = latest.get(reward.answer)
        if (reward.answer, reward.number) not in withdrawn and (known is None or reward.number > known.number):
            latest[reward.answer] = reward
    return latest


def all_rewards(spans: Sequence[Span]) -> list[SessionReward]:
    """Return all rewards among the spans of a session, including replaced ones."""
    return [reward for span in spans if (reward := _read(span)) is not None]


def reward_span(rollout_id: str, attempt_id: str, reward: SessionReward) -> Span:
    """Return the span of a reward."""
    prefix = LightningSpanAttributes.REWARD.value
    facts: Attributes = {
        f"{prefix}.0.name": "primary",
        f"{prefix}.0.value": reward.value,
        LightningSpanAttributes.REWARD_SCOPE.value: "rollout",
        _NUMBER: reward.number,
    }
    if reward.withdraws is not None:
        facts[_WITHDRAWS] = reward.withdraws
    about = ""
    if reward.comparison is not None:
        facts[COMPARISON] = reward.comparison
    if reward.answer is not None:
        facts[RESPONSE_ID], facts[CHOICE] = reward.answer.call, reward.answer.choice
        about = f"{reward.answer.call}/{reward.answer.choice}"
    name = f"{rollout_id}/{attempt_id}/{about}/{reward.number}"
    return Span.from_attributes(
        attributes=facts,
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=reward.sequence_id,
        name=AGL_ANNOTATION,
        span_id=hashlib.blake2b(name.encode(), digest_size=8).hexdigest(),
        status=TraceStatus(status_code="OK"),
    )


def _read(span: Span) -> SessionReward | None:
    number, value = span.attributes.get(_NUMBER), get_reward_value(span)
    if not isinstance(number, int) or value is None:
        return None
    response, choice = span.attributes.get(RESPONSE_ID), span.attributes.get(CHOICE)
    comparison, withdraws = span.attributes.get(COMPARISON), span.attributes.get(_WITHDRAWS)
    return SessionReward(
        value=value,
        comparison=None if comparison is None else str(comparison),
        answer=None if response is None else Answer.of(response, choice),
        number=number,
        sequence_id=span.sequence_id,
        withdraws=withdraws if isinstance(withdraws, int) else None,
    )


def answer_of(call: Span) -> Answer:
    """Return the answer of a call."""
    return Answer.of(call.attributes.get(Call.RESPONSE_ID, ""), call.attributes.get(Call.CHOICE_INDEX, 0))
