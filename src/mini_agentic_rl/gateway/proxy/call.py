"""The backend of the proxy: sends a chat request to an upstream, and records and returns its answer.

An answer is recorded before its end reaches the agent. If the upstream reports token ids and log-probabilities, the
record has them and the call can be trained; otherwise the record has the messages alone, and says so.

The bytes of an answer are read within bounds: it may be endless, huge or malformed. Answers are requested uncompressed.
If a server sends gzip anyway, they are decompressed here, so that the bound holds for the decompressed bytes.
`ChatReader` (`dialects/reader.py`) reads the chat completion in them.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import httpx

from ...http import (
    LARGE,
    BadRequestError,
    Gunzip,
    GunzipError,
    HttpError,
    MetricFamily,
    TooLargeError,
    encode_in_steps,
    json_object,
    off_loop,
    size_of,
)
from ...semconv import CompletionSpanAttributes, GenAiAttributes
from ...store import LightningStore
from ..completion.record import TOKENS_HELP, Attempt, RecordedAnswer, RolloutAttempts, record_answer
from ..dialects import Caller, CallScope, ChatDialect, ChatReader, Dialect, Exchange, shared_dialects
from ..settings import RolloutLimits
from .upstreams import MAX_REFUSAL_BYTES, Upstream, UpstreamError, UpstreamRefusedError, Upstreams

_SETTINGS: Final = (
    (GenAiAttributes.REQUEST_MAX_TOKENS, "max_tokens"),
    (GenAiAttributes.REQUEST_MAX_TOKENS, "max_completion_tokens"),
    (GenAiAttributes.REQUEST_TOP_P, "top_p"),
    (GenAiAttributes.REQUEST_SEED, "seed"),
    (GenAiAttributes.REQUEST_PRESENCE_PENALTY, "presence_penalty"),
    (GenAiAttributes.REQUEST_FREQUENCY_PENALTY, "frequency_penalty"),
    (CompletionSpanAttributes.REPETITION_PENALTY, "repetition_penalty"),
)
"""Fields of a request that its span reports, beside the temperature."""


class ProxyService:
    """A `Backend` that sends chat requests to upstreams. Used from one event loop.

    Args:
        upstreams: the servers.
        store: returns the store that records calls under a rollout's URL.
        limits: limits of rollouts.
    """

    title = "mini-agentic-rl proxy"
    about = "An OpenAI-compatible endpoint that passes calls on to other servers"
    owner = "upstream"
    context_length = None
    count = None

    def __init__(self, upstreams: Upstreams, store: Callable[[], LightningStore | None], limits: RolloutLimits) -> None:
        self.upstreams = upstreams
        self.store = store
        self.attempts = RolloutAttempts(limits, store)
        self.tokens: Counter[str] = Counter()
        """Tokens of ended calls: of prompts, found in a cache, and sampled."""
        self.dialects: Sequence[Dialect] = shared_dialects()

    @property
    def models(self) -> Sequence[str]:
        return list(self.upstreams.servers)

    @property
    def records(self) -> bool:
        return self.store() is not None

    def parse(self, dialect: Dialect, body: dict[str, Any], exchange: Exchange) -> tuple[dict[str, Any], Sequence[str]]:
        chat = exchange.chat
        if not isinstance(chat.get("messages"), list):
            raise BadRequestError("messages: expected a list", param="messages")
        temperature = chat.get("temperature")
        number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
        if temperature is not None and not (number and 0 <= temperature <= sys.float_info.max):
            raise BadRequestError("temperature: expected a number, 0 or more", param="temperature")
        if not isinstance(chat.get("stream_options"), dict | None):
            raise BadRequestError("stream_options: expected an object", param="stream_options")
        # A chat request is sent on unchanged.
        return chat, () if isinstance(dialect, ChatDialect) else dialect.left_out(body)

    async def begin(self, chat: dict[str, Any], exchange: Exchange, caller: Caller, key: str) -> ProxiedCall:
        attempt = await self.attempts.find(caller.scope)
        store, start_time = self.store(), time.time()
        await attempt.begin()
        recorded = caller.scope is not None
        # A budget of tokens needs the counts of a stream, though the agent may not have requested them.
        options = chat.get("stream_options") or {}
        counted = recorded and self.attempts.limits.max_rollout_tokens is not None
        adds_usage = bool(chat.get("stream")) and counted and not options.get("include_usage")

        def body_for(upstream: Upstream) -> dict[str, Any]:
            body = upstream.body(chat, recorded=recorded)
            return {**body, "stream_options": {**options, "include_usage": True}} if adds_usage else body

        try:
            rollout_id = None if caller.scope is None else caller.scope[0]
            upstream, response = await self.upstreams.send(str(chat.get("model")), body_for, rollout_id)
            if response.is_error:
                try:
                    content = await read_beginning(response, MAX_REFUSAL_BYTES)
                finally:
                    await response.aclose()
                raise UpstreamRefusedError(upstream, response, content)
        except HttpError:
            attempt.give_back()
            raise
        return ProxiedCall(self, exchange, caller, attempt, store, upstream, response, adds_usage, start_time)

    def forget(self, scope: CallScope) -> None:
        """Do nothing: only the dialects remember attempts."""

    def facts(self) -> dict[str, Any]:
        return {"models": self.models}

    def metric_counters(self) -> Iterable[MetricFamily]:
        tokens = {kind: self.tokens[kind] for kind in ("prompt", "cached", "completion")}
        yield MetricFamily.by_kind("tokens", TOKENS_HELP, tokens)
        tries = "Requests sent on, by server and outcome."
        yield MetricFamily("upstream_tries", tries, self.upstreams.sent, ("server", "outcome"))

    def metric_gauges(self) -> Iterable[MetricFamily]:
        servers = [server for replicas in self.upstreams.servers.values() for server in replicas]
        up: dict[tuple[str, ...], float] = {(s.shown_url,): float(not self.upstreams.is_down(s)) for s in servers}
        yield MetricFamily("upstream_up", "Whether a server is considered reachable.", up, ("server",))


@dataclass(eq=False, repr=False)
class ProxiedCall:
    """One chat request that an upstream answers."""

    service: ProxyService
    exchange: Exchange
    """The request in the agent's dialect."""
    caller: Caller
    attempt: Attempt
    """Has the budget of the call."""
    store: LightningStore | None
    """Records the call; None records nothing."""
    upstream: Upstream
    response: httpx.Response
    adds_usage: bool
    """True if a stream reports token counts that the agent did not request."""
    start_time: float
    left_out: Sequence[str] = ()

    def __post_init__(self) -> None:
        self._body = self.exchange.chat
        self._answer = ChatReader()
        self._recorded = False

    @property
    def streams(self) -> bool:
        return bool(self._body.get("stream"))

    async def whole(self) -> bytes:
        with self._reading():
            completion = await read_whole(self.response)
        self._take(completion)
        await self._record()
        size = size_of([self._body, completion], LARGE)  # a dialect may keep the conversation
        return await off_loop(size, lambda: encode_in_steps(self.exchange.answer(completion)))

    async def events(self) -> AsyncGenerator[bytes, None]:
        with self._reading():
            async for chunk in read_events(self.response):
                self._take(chunk)
                usage_alone = not chunk.get("choices") and bool(chunk.get("usage"))
                if not (usage_alone and self.adds_usage):
                    yield self.exchange.events(chunk)
        if not self._answer.choices:
            raise UpstreamError(self.upstream, "ended a stream in which there was no answer")
        await self._record()
        yield await off_loop(size_of(self._body, LARGE), self.exchange.end)  # a dialect may keep the conversation

    async def end(self) -> None:
        """Close the upstream's answer, count its tokens, and record the beginning of an interrupted one."""
        await self.response.aclose()
        answer = self._answer
        if not self._recorded and answer.choices:
            for choice in answer.choices.values():
                choice.finish_reason = choice.finish_reason or "cancelled"
            with suppress(HttpError):  # it is logged, and the client has gone
                await self._record()
        prompt, sampled = answer.prompt_tokens, answer.completion_tokens
        self.service.tokens.update({"prompt": prompt, "cached": answer.cached_tokens, "completion": sampled})
        self.attempt.spend(prompt + sampled)

    def _take(self, part: dict[str, Any]) -> None:
        if error := part.get("error"):
            message = error.get("message") if isinstance(error, dict) else error
            text = message if isinstance(message, str) else "without a message"
            raise UpstreamError(self.upstream, f"ended its answer with an error: {text}")
        try:
            self._answer.take(part)
        except (TypeError, ValueError, AttributeError, LookupError, OverflowError) as error:
            raise UpstreamError(self.upstream, f"sent an answer that is not a chat completion: {error}") from error

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except httpx.ReadTimeout as error:
            raise self.service.upstreams.silent(self.upstream) from error
        except httpx.RequestError as error:
            problem = f"broke off its answer for model {self.upstream.name!r}: {type(error).__name__}: {error}"
            raise UpstreamError(self.upstream, problem, code="upstream_broken") from error
        except UnreadableAnswerError as error:
            raise UpstreamError(self.upstream, str(error)) from error

    async def _record(self) -> None:
        self._recorded = True
        if self.caller.scope is None or self.store is None:
            return
        answer, body = self._answer, self._body
        temperature = 1.0 if body.get("temperature") is None else float(body["temperature"])
        settings = {name: value for name, field in _SETTINGS if isinstance(value := body.get(field), int | float)}
        for index, choice in answer.choices.items():
            recorded = RecordedAnswer(
                caller=self.caller,
                response_id=answer.id,
                model=self.upstream.name,
                messages=body["messages"],
                tools=body.get("tools") or [],
                settings={CompletionSpanAttributes.REQUEST_TEMPERATURE: temperature, **settings},
                start_time=self.start_time,
                index=index,
                message=choice.message,
                finish_reason=choice.finish_reason or "cancelled",
                prompt_ids=answer.prompt_ids,
                token_ids=choice.token_ids,
                logprobs=choice.logprobs,
            )
            await record_answer(self.store, recorded)


MAX_BYTES: Final = 64 * 1024 * 1024
"""Bytes of a whole answer."""
MAX_STREAM_BYTES: Final = 256 * 1024 * 1024
"""Bytes of a streamed answer: about 100,000 tokens with 20 alternatives each."""
MAX_LINES: Final = 1_000_000
"""Lines of a streamed answer; each token takes two or three."""
MAX_LINE_BYTES: Final = 16 * 1024 * 1024
MAX_VALUES: Final = 1_000_000
"""Values in one JSON text: the ids of a prompt and an answer, each with a few alternatives."""

_SMALL: Final = 64 * 1024
"""Bytes that are parsed on the event loop."""
_TURN: Final = 50
"""Lines or chunks after which other tasks run: a received buffer may hold many of one byte each."""


class UnreadableAnswerError(ValueError):
    """The answer exceeds a bound or is malformed; the message continues a sentence that starts with the server."""


async def read_whole(answer: httpx.Response) -> dict[str, Any]:
    """Return the JSON object in an answer.

    Raises:
        UnreadableAnswerError: it is not a JSON object, or too large.
        httpx.RequestError: the answer broke off.
    """
    content = b"".join([piece async for piece in _decoded(answer, MAX_BYTES)])
    try:
        return await asyncio.to_thread(_parsed, content) if len(content) > _SMALL else _parsed(content)
    except BadRequestError as error:
        raise UnreadableAnswerError("answered something that is not a JSON object") from error


async def read_beginning(answer: httpx.Response, most: int) -> bytes:
    """Return the first `most` bytes of an answer, fewer if it breaks off."""
    content = bytearray()
    with suppress(httpx.RequestError, UnreadableAnswerError):
        async with aclosing(_decoded(answer, most)) as pieces:
            async for piece in pieces:
                content += piece
    return bytes(content)


async def read_events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Yield the JSON objects in an answer of server-sent events; everything else is ignored.

    Raises:
        UnreadableAnswerError: a line, a JSON text or the whole is too large.
        httpx.RequestError: the answer broke off.
    """
    async for line in _lines(answer):
        if not line.startswith(b"data:") or (data := line[5:].strip()) == b"[DONE]":
            continue
        with suppress(BadRequestError):
            yield await asyncio.to_thread(_parsed, data) if len(data) > _SMALL else _parsed(data)


async def _lines(answer: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the lines of an answer without line ends; the last may lack one."""
    begun = bytearray()
    lines = 0
    async for piece in _decoded(answer, MAX_STREAM_BYTES):
        begun += piece
        if b"\n" in piece:
            cut = begun.rfind(b"\n") + 1
            whole = bytes(begun[:cut]).splitlines()
            del begun[:cut]
            if lines + len(whole) > MAX_LINES:
                raise UnreadableAnswerError(f"sent more than {MAX_LINES:,} lines")
            for line in whole:
                yield line
                lines += 1
                if lines % _TURN == 0:
                    await asyncio.sleep(0)
        if len(begun) > MAX_LINE_BYTES:
            raise UnreadableAnswerError(f"sent a line of more than {MAX_LINE_BYTES:,} bytes")
    for line in bytes(begun).splitlines():
        yield line


async def _decoded(answer: httpx.Response, most: int) -> AsyncGenerator[bytes, None]:
    """Yield the decompressed bytes of an answer."""
    encoding = answer.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", ""):
        raise UnreadableAnswerError(f"sent an answer with a content encoding that was not requested: {encoding[:50]!r}")
    packed = Gunzip(most) if encoding == "gzip" else None
    size = 0
    try:
        async with aclosing(answer.aiter_raw()) as pieces:  # type: ignore[type-var]  # it is an async generator
            count = 0
            async for piece in pieces:
                count += 1
                if count % _TURN == 0:
                    await asyncio.sleep(0)
                if packed is not None:
                    for each in packed.feed(piece):
                        yield each
                        await asyncio.sleep(0)
                    continue
                size += len(piece)
                if size > most:
                    raise TooLargeError(f"it has more than {most} bytes")
                yield piece
        if packed is not None:
            packed.end()
    except (TooLargeError, GunzipError) as error:
        raise UnreadableAnswerError(f"sent an answer that cannot be read: {error}") from None


def _parsed(content: bytes) -> dict[str, Any]:
    """Return a JSON object; raises BadRequestError if it is not one, and UnreadableAnswerError if it is too large."""
    if 1 + content.count(b",") + content.count(b"[") + content.count(b"{") > MAX_VALUES:
        raise UnreadableAnswerError(f"sent more than {MAX_VALUES:,} values at once")
    return json_object(content)
