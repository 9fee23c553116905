"""Errors of sessions: each says what a person can do about it."""

from __future__ import annotations

from ...errors import UserError


class SessionError(UserError):
    """Report that something cannot be done with a session.

    Args:
        text: what is wrong, and what to do.
        code: a short name of the error, for programs.
    """

    def __init__(self, text: str, code: str) -> None:
        super().__init__(text)
        self.code = code


class SessionRequestError(SessionError):
    """The request names something that there cannot be: an id, a number, an answer."""


class UnknownSessionError(SessionError):
    """No such session is recorded for whoever asks."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"no session {session_id!r} is recorded under this key: it was not opened, had no consent, made no call, "
            "or was deleted",
            "session_unknown",
        )


class SessionConflictError(SessionError):
    """The session is in a state in which that cannot be done."""
