"""The record of a session: what the metadata of its rollout say about it.

The id of the rollout follows from the owner's key and the session's id, so that a session is found without a search,
the same from every process, and by nobody who has another key.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...types import Rollout
from .errors import SessionRequestError

SESSION_KEY: Final = "session"
"""In a rollout's metadata: what it was opened with, and what the learner says of it."""
ENDED_KEY: Final = "session_ended"
"""In its attempt's metadata, which the learner does not write: neither undoes what the other says at the same time."""
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
    """True once its agent has said that it is over."""
    judged: bool = False
    learning: int | None = None
    """Version of the policy whose step has taken it, or is about to."""
    learnt: int | None = None
    """Version of the policy that has learnt from it."""
    skipped: str | None = None
    """Reason for which it will not be learnt from."""

    @property
    def status(self) -> str:
        """`open`, `ended`, `judged`, `learnt` or `skipped`."""
        if self.learnt is not None:
            return "learnt"
        if self.skipped is not None:
            return "skipped"
        return "judged" if self.judged else "ended" if self.ended else "open"


def owner_of(api_key: str) -> str:
    """Return the name under which the sessions of a key are kept; the key cannot be read from it."""
    return hashlib.blake2b(api_key.encode(), digest_size=12, person=b"session-owner").hexdigest()


def rollout_id_of(owner: str, session_id: str) -> str:
    """Return the id of the session's rollout.

    Raises:
        SessionRequestError: the session's id has other characters than ids have, or too many.
    """
    if not _ID.fullmatch(session_id):
        raise SessionRequestError(
            "a session's id has 1 to 128 letters, digits and . _ : @ = + -, no others, and is neither . nor ..",
            "session_id_invalid",
        )
    return _PREFIX + hashlib.blake2b(f"{owner}/{session_id}".encode(), digest_size=16).hexdigest()


def is_session(rollout_id: str) -> bool:
    """Return True if a rollout of this id can be a session."""
    return rollout_id.startswith(_PREFIX)


def checked_key(key: str) -> str:
    """Return the key that sessions are compared under.

    Raises:
        SessionRequestError: it is too long.
    """
    if len(key) > KEY_LENGTH:
        raise SessionRequestError(f"a session's key has at most {KEY_LENGTH} characters", "session_key_invalid")
    return key


def checked_task(task: Any) -> None:
    """Check what is to be kept beside a session: whoever looks through many sessions reads it of each.

    Raises:
        SessionRequestError: it is too long, or no JSON.
    """
    try:
        length = len(json.dumps(task))
    except (TypeError, ValueError, RecursionError) as error:
        raise SessionRequestError(f"a session's task is kept as JSON: {error}", "session_task_invalid") from None
    if length > TASK_LENGTH:
        raise SessionRequestError(
            f"a session's task has at most {TASK_LENGTH} characters of JSON, not {length}", "session_task_invalid"
        )


def read_record(rollout: Rollout) -> SessionRecord | None:
    """Return the session that a rollout is; None where it is an ordinary one."""
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


def metadata_with(rollout: Rollout, **facts: Any) -> dict[str, Any]:
    """Return the metadata of a session's rollout with some facts about the session changed."""
    metadata = dict(rollout.metadata or {})
    return {**metadata, SESSION_KEY: {**metadata.get(SESSION_KEY, {}), **facts}}
