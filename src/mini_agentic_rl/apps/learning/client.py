"""The client of a gateway's sessions: open, end, reward, compare and delete them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final
from urllib.parse import quote

import httpx

from ...key_header import bearer_header
from .record import SessionConflictError, SessionError, SessionRequestError, UnknownSessionError

_SECONDS: Final = 30.0


class Sessions:
    """The sessions of one API key at a gateway. Safe in several threads.

    Args:
        url: address of the gateway, with or without `/v1`.
        api_key: None takes OPENAI_API_KEY, where that is set.
    """

    def __init__(self, url: str, *, api_key: str | None = None, timeout: float = _SECONDS) -> None:
        self.root = url.rstrip("/").removesuffix("/v1")
        key = api_key or os.environ.get("OPENAI_API_KEY")
        self._client = httpx.Client(base_url=self.root, headers=bearer_header(key), timeout=timeout)

    def __enter__(self) -> Sessions:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def open(
        self, session_id: str | None = None, *, key: str = "", consent: bool | None = None, task: Any = None
    ) -> Session:
        """Return the session of this id, opened if it does not exist.

        Args:
            session_id: None makes an id.
            key: sessions with the same key are compared with each other, such as a task's name or the prompt.
            consent: whether its calls may be stored and learnt from; None takes the server's setting.
            task: a JSON value to store with it.

        Raises:
            SessionError: the server refuses.
            httpx.HTTPError: it cannot be reached.
        """
        sent = {"id": session_id, "key": key, "consent": consent, "task": task}
        content = self._ask("POST", "/v1/sessions", sent)
        return Session(self, content["id"], key, content["recorded"], self.root + content["path"])

    def show(self, session_id: str, *, messages: bool = False) -> dict[str, Any]:
        """Return the state of a session; with `messages` also its conversation, call by call.

        Raises:
            UnknownSessionError: the key has no session of this id.
        """
        return self._ask("GET", _path(session_id) + ("?messages=yes" if messages else ""))

    def end(self, session_id: str) -> None:
        """Mark a session as ended, so that the learner's judge may score it.

        Raises:
            UnknownSessionError: the key has no session of this id.
        """
        self._ask("POST", _path(session_id, "end"), {})

    def reward(
        self,
        session_id: str,
        reward: float,
        *,
        response_id: str | None = None,
        choice: int = 0,
        replace: bool = False,
    ) -> None:
        """Give a session, or one answer in it, a reward.

        Args:
            reward: a number from -1e9 to 1e9; more is better.
            response_id: id of the answer, as its call returned it; None for the whole session.
            choice: index of the answer if the call returned several.
            replace: replace an earlier reward, which is refused otherwise.

        Raises:
            UnknownSessionError: the key has no session of this id.
            SessionConflictError: it has a reward, was learnt from, or made no call.
            SessionRequestError: the reward is out of range, or there is no such answer.
        """
        if reward - reward != 0:  # neither NaN nor an infinity can be written as JSON
            raise SessionRequestError(f"the reward is {reward}: it must be finite", "reward_invalid")
        sent = {"reward": reward, "response_id": response_id, "choice": choice, "replace": replace}
        self._ask("POST", _path(session_id, "reward"), sent)

    def prefer(
        self, chosen: str | Mapping[str, Any], rejected: str | Mapping[str, Any], *, replace: bool = False
    ) -> str:
        """Prefer one of two sessions or answers; return the id of the comparison.

        Args:
            chosen: id of a session, or `{"session": …, "response_id": …, "choice": …}` for an answer.
            rejected: the other one.
            replace: as in `reward`.

        Raises:
            SessionError: as `reward` does.
        """
        sent = {"chosen": _named(chosen), "rejected": _named(rejected), "replace": replace}
        return str(self._ask("POST", "/v1/sessions/comparisons", sent)["id"])

    def score_group(self, scores: Mapping[str, float], *, replace: bool = False) -> str:
        """Give sessions scores that only compare them with each other; return the id of the comparison.

        Args:
            scores: by the ids of the sessions.
            replace: as in `reward`.

        Raises:
            SessionError: as `reward` does.
        """
        entries = [{"session": name, "score": score} for name, score in scores.items()]
        return str(self._ask("POST", "/v1/sessions/comparisons", {"scores": entries, "replace": replace})["id"])

    def delete(self, session_id: str) -> int | None:
        """Delete a session with its conversation, tokens and rewards; return the version of the weights that learnt, or
        is learning, from it; None if there is none.

        Raises:
            UnknownSessionError: the key has no session of this id.
        """
        learnt: int | None = self._ask("DELETE", _path(session_id))["learnt_in"]
        return learnt

    def _ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        answer = self._client.request(method, path, json=body)
        try:
            content = answer.json()
        except ValueError:
            content = {}
        if answer.is_success and isinstance(content, dict):
            return content
        error = content.get("error") if isinstance(content, dict) else None
        facts = error if isinstance(error, dict) else {}
        text = str(facts.get("message") or f"{self.root} answered {answer.status_code} to {method} {path}")
        code = str(facts.get("code") or "")
        kinds = {400: SessionRequestError, 409: SessionConflictError}
        raise (UnknownSessionError if code == "session_unknown" else kinds.get(answer.status_code, SessionError))(
            text, code
        )


@dataclass
class Session:
    """One session. As a context manager it ends with its block."""

    sessions: Sessions = field(repr=False)
    id: str
    key: str
    recorded: bool
    """False without consent: its calls are answered and not stored."""
    base_url: str
    """Base URL of its clients, in every dialect: `OpenAI(base_url=…)`."""

    @property
    def headers(self) -> dict[str, str]:
        """Headers that assign calls at the plain URL to this session, for a client that serves many sessions."""
        consent = "yes" if self.recorded else "no"
        named = {"X-Session-Id": self.id, "X-Session-Consent": consent} if self.id is not None else {}
        return named | ({"X-Session-Key": self.key} if self.key else {})

    def reward(self, reward: float, **options: Any) -> None:
        """Give it a reward; see `Sessions.reward`. Does nothing without consent."""
        if self.recorded:
            self.sessions.reward(self.id, reward, **options)

    def end(self) -> None:
        """Mark it as ended. Does nothing without consent."""
        if self.recorded:
            self.sessions.end(self.id)

    def delete(self) -> int | None:
        """Delete it; see `Sessions.delete`."""
        return self.sessions.delete(self.id) if self.recorded else None


@contextmanager
def session(
    url: str,
    *,
    session_id: str | None = None,
    key: str = "",
    consent: bool | None = None,
    task: Any = None,
    api_key: str | None = None,
) -> Iterator[Session]:
    """Open a session that ends with the block; its reward may be given in the block or later.

    The arguments are those of `Sessions` and of `Sessions.open`.

    Raises:
        SessionError: the server refuses.
        httpx.HTTPError: it cannot be reached.
    """
    with Sessions(url, api_key=api_key) as sessions:
        opened = sessions.open(session_id, key=key, consent=consent, task=task)
        try:
            yield opened
        finally:
            opened.end()


def _path(session_id: str, what: str = "") -> str:
    return f"/v1/sessions/{quote(session_id, safe='')}" + (f"/{what}" if what else "")


def _named(answer: str | Mapping[str, Any]) -> dict[str, Any]:
    return {"session": answer} if isinstance(answer, str) else dict(answer)
