"""Sessions over HTTP: the session of a call, and the requests that open, judge and delete sessions.

A call names its session by the header `X-Session-Id`, in any dialect; the first call also sends `X-Session-Key` and
`X-Session-Consent`. Or it uses the URL of the session's rollout, which `POST /v1/sessions` returns.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar

from pydantic import Field
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ...errors import log_failure
from ...gateway import Caller, SessionSettings
from ...gateway.dialects import CallScope
from ...gateway.errors import NotFoundError, RecordingError
from ...http import (
    Admission,
    AdmittedEndpoint,
    BadRequestError,
    Body,
    Endpoint,
    HttpError,
    RequestMetrics,
    checked,
    json_response,
    openai_response,
    read_body,
    read_json,
)
from ...semconv import CompletionSpanAttributes as Call
from ...store import LightningStore
from ...types import Span
from .book import Judgement, SessionBook
from .record import (
    Answer,
    SessionConflictError,
    SessionError,
    SessionRecord,
    SessionReward,
    UnknownSessionError,
    is_session,
    owner_of,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")
BodyT = TypeVar("BodyT", bound=Body)

# Sessions as JSON for clients, and as text for a judge.


_MOST_CALLS: Final = 100
_MOST_CHARACTERS: Final = 1_000_000


def session_json(record: SessionRecord, rewards: Mapping[Answer | None, SessionReward], calls: int) -> dict[str, Any]:
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
                "response_id": None if reward.answer is None else reward.answer.call,
                "choice": None if reward.answer is None else reward.answer.choice,
            }
            for reward in rewards.values()
        ],
    }


def transcript(last: Span | None) -> str:
    """Return a conversation as text: the messages and the answer of its last call; "" without a call."""
    if last is None:
        return ""
    facts = last.attributes
    shown = json.loads(str(facts.get(Call.INPUT_MESSAGES, "[]")))
    return json.dumps([*shown, json.loads(str(facts.get(Call.OUTPUT_MESSAGES, "null")))], ensure_ascii=False)


async def conversation(calls: AsyncIterator[Span]) -> tuple[list[dict[str, Any]], bool]:
    """Return the first of some calls, as many as are shown at once, and whether there are more."""
    shown: list[dict[str, Any]] = []
    characters = 0
    async for span in calls:
        facts = span.attributes
        texts = str(facts.get(Call.INPUT_MESSAGES, "[]")), str(facts.get(Call.OUTPUT_MESSAGES, "null"))
        characters += sum(map(len, texts))
        if shown and (characters > _MOST_CHARACTERS or len(shown) == _MOST_CALLS):
            return shown, True
        messages, answer = map(json.loads, texts)
        facts_shown = {"response_id": facts.get(Call.RESPONSE_ID), "choice": facts.get(Call.CHOICE_INDEX, 0)}
        shown.append({**facts_shown, "messages": messages, "answer": answer})
    return shown, False


ID_HEADER: Final = "x-session-id"
KEY_HEADER: Final = "x-session-key"
CONSENT_HEADER: Final = "x-session-consent"
_YES, _NO = ("yes", "true", "1"), ("no", "false", "0")
_MOST_JUDGED: Final = 256
"""Sessions or answers of one comparison."""
_MOST_BYTES: Final = 128 * 1024
"""Bytes of a request: enough for a comparison of `_MOST_JUDGED` sessions."""


class ConflictError(HttpError):
    """The request conflicts with the state of the session."""

    status = 409
    kind = "invalid_request_error"


class OpenRequest(Body):
    """Open a session."""

    id: str | None = None
    key: str = ""
    consent: bool | None = None
    task: Any = None


class AnswerRequest(Body):
    """Name a session, or an answer in it."""

    session: str
    response_id: str | None = None
    choice: int = 0

    def judged(self, score: float) -> Judgement:
        """Return it with a score."""
        answer = None if self.response_id is None else Answer.of(self.response_id, self.choice)
        return Judgement(self.session, score, answer)


class RewardRequest(Body):
    """Give a session, or an answer in it, a number."""

    reward: float
    response_id: str | None = None
    choice: int = 0
    replace: bool = False


class ScoredRequest(AnswerRequest):
    """One entry of a comparison."""

    score: float


class ComparisonRequest(Body):
    """Compare sessions or answers: by scores, or a chosen and a rejected one."""

    scores: Annotated[list[ScoredRequest], Field(max_length=_MOST_JUDGED)] | None = None
    chosen: AnswerRequest | None = None
    rejected: AnswerRequest | None = None
    replace: bool = False

    def judgements(self) -> Sequence[Judgement]:
        """Return the scores: those given, or 1 for the chosen and 0 for the rejected.

        Raises:
            BadRequestError: it has neither or both.
        """
        pair = self.chosen is not None and self.rejected is not None
        if (self.scores is not None) == pair or (self.chosen is None) != (self.rejected is None):
            raise BadRequestError("give either scores, or both chosen and rejected", param="scores")
        if self.scores is not None:
            return [entry.judged(entry.score) for entry in self.scores]
        pair_scores = ((self.chosen, 1.0), (self.rejected, 0.0))
        return [answer.judged(score) for answer, score in pair_scores if answer is not None]


class SessionGate:
    """The sessions of a gateway. Used from one event loop.

    Args:
        book: the sessions.
    """

    def __init__(self, book: SessionBook) -> None:
        self.book = book

    async def caller(self, request: Request, key: str, caller: Caller) -> Caller:
        """Return the caller of a request, with the session of its headers unless its URL names a rollout.

        Without consent it belongs to no session: it is answered and not stored.

        Raises:
            BadRequestError: a header cannot be read.
            NotFoundError: the URL is that of another key's session.
            RecordingError: the store does not answer.
        """
        if caller.scope is not None:
            if is_session(caller.scope[0]) and not await _translated(self.book.owns(owner_of(key), caller.scope[0])):
                raise NotFoundError("no session of this API key has this URL", code="session_unknown")
            return caller
        session_id = request.headers.get(ID_HEADER)
        if session_id is None:
            return caller
        record = await _translated(
            self.book.open(
                owner_of(key),
                session_id,
                key=request.headers.get(KEY_HEADER, ""),
                consent=_consent(request.headers.get(CONSENT_HEADER)),
            )
        )
        return Caller(None if record is None else record.ids, caller.agent, caller.traceparent)

    def add_routes(
        self,
        app: Starlette,
        admission: Admission,
        metrics: RequestMetrics,
        forget: Callable[[CallScope, str], None],
    ) -> None:
        """Serve sessions at `/v1/sessions`; each key sees only its own."""
        limits, book = admission.limits, self.book
        limit, seconds = min(limits.max_body_bytes, _MOST_BYTES), limits.max_body_seconds

        async def body(request: Request, kind: type[BodyT]) -> BodyT:
            return await read_json(request, limit, lambda fields: checked(kind, fields), within_seconds=seconds)

        async def facts_of(record: SessionRecord) -> dict[str, Any]:
            return session_json(record, await book.rewards(record), await book.count_calls(record))

        async def open_session(request: Request, key: str) -> Response:
            sent = await body(request, OpenRequest)
            record = await book.open(owner_of(key), sent.id, key=sent.key, consent=sent.consent, task=sent.task)
            if record is None:
                unkept = {"object": "session", "id": sent.id, "key": sent.key, "recorded": False, "path": "/v1"}
                return json_response(unkept)
            path = f"/rollout/{record.rollout_id}/attempt/{record.attempt_id}/v1"
            return json_response(await facts_of(record) | {"recorded": True, "path": path}, 201)

        async def show(request: Request, key: str) -> Response:
            record = await book.get(owner_of(key), request.path_params["id"])
            facts = await facts_of(record)
            if request.query_params.get("messages") in _YES:
                place = request.query_params.get("first", "0")
                if not (place.isascii() and place.isdecimal() and len(place) < 16):
                    raise BadRequestError("first: the number of a call, from 0", param="first")
                shown, more = await conversation(book.calls(record, int(place)))
                facts |= {"conversation": shown, "next": int(place) + len(shown) if more else None}
            return json_response(facts)

        async def end(request: Request, key: str) -> Response:
            await read_body(request, limit, within_seconds=seconds)  # its content is ignored, its size is bounded
            return json_response(await facts_of(await book.end(owner_of(key), request.path_params["id"])))

        async def reward(request: Request, key: str) -> Response:
            sent = await body(request, RewardRequest)
            answer = None if sent.response_id is None else Answer.of(sent.response_id, sent.choice)
            judgement = Judgement(request.path_params["id"], sent.reward, answer)
            return json_response(await facts_of(await book.judge(owner_of(key), judgement, replace=sent.replace)))

        async def compare(request: Request, key: str) -> Response:
            sent = await body(request, ComparisonRequest)
            comparison = await book.compare(owner_of(key), sent.judgements(), replace=sent.replace)
            return json_response({"object": "comparison", "id": comparison}, 201)

        async def delete(request: Request, key: str) -> Response:
            record = await book.delete(owner_of(key), request.path_params["id"])
            forget(record.ids, key)
            taken = record.learnt if record.learnt is not None else record.learning
            facts = {"object": "session", "id": record.session_id, "deleted": True, "learnt_in": taken}
            return json_response(facts)

        def with_key(answer: Callable[[Request, str], Awaitable[Response]]) -> Endpoint:
            async def call(request: Request) -> Response:
                return await _translated(answer(request, admission.keys.check(request.headers)))

            return call

        for method, path, answer in (
            ("POST", "/v1/sessions", open_session),
            ("POST", "/v1/sessions/comparisons", compare),
            ("GET", "/v1/sessions/{id}", show),
            ("DELETE", "/v1/sessions/{id}", delete),
            ("POST", "/v1/sessions/{id}/end", end),
            ("POST", "/v1/sessions/{id}/reward", reward),
        ):
            endpoint = AdmittedEndpoint("sessions", with_key(answer), admission, metrics, openai_response)
            app.router.routes.append(Route(path, endpoint, methods=[method]))


def session_gate(store: LightningStore, settings: SessionSettings) -> SessionGate:
    """Return the gate of a gateway for the sessions in a store."""
    return SessionGate(SessionBook(store, settings))


async def _translated(work: Awaitable[T]) -> T:
    """Return the result of work with the book, whose errors become HTTP errors.

    Raises:
        HttpError: the request is invalid, the book refuses, or the store does not answer.
        ClientDisconnect: the client has gone.
    """
    try:
        return await work
    except (HttpError, ClientDisconnect):
        raise
    except UnknownSessionError as error:
        raise NotFoundError(str(error), code=error.code) from error
    except SessionConflictError as error:
        raise ConflictError(str(error), code=error.code) from error
    except SessionError as error:
        raise BadRequestError(str(error), code=error.code) from error
    except Exception as error:  # of any store
        log_failure(logger, error, "the store of sessions failed")
        raise RecordingError from error


def _consent(header: str | None) -> bool | None:
    if header is None:
        return None
    answer = header.strip().lower()
    if answer not in (*_YES, *_NO):
        raise BadRequestError(f"{CONSENT_HEADER}: say yes or no, not {header!r}", code="consent_invalid")
    return answer in _YES
