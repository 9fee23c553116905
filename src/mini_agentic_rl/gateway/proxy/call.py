"""The backend of the proxy: sends a chat request to an upstream, and records and returns its answer.

An answer is recorded before its end reaches the agent. If the upstream reports token ids and log-probabilities, the
record has them and the call can be trained; otherwise the record has the messages alone, and says so.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import httpx

from ...http import LARGE, BadRequestError, HttpError, MetricFamily, encode_in_steps, off_loop, size_of
from ...semconv import CompletionSpanAttributes, GenAiAttributes
from ...store import LightningStore
from ..completion.record import TOKENS_HELP, RecordedAnswer, RolloutAttempts, record_answer
from ..dialects import Caller, CallScope, ChatDialect, ChatReader, Dialect, Exchange, shared_dialects
from ..settings import RolloutLimits
from .reading import UnreadableAnswerError, read_beginning, read_events, read_whole
from .upstreams import MAX_REFUSAL_BYTES, Upstream, UpstreamError, UpstreamRefusedError, Upstreams, error_text

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
    about = (
        "An OpenAI-compatible endpoint that passes calls on to other servers: set a client's base_url to this address "
        "with /v1. Calls under /rollout/ID/attempt/ID/v1 are recorded for training. Where keys are set, requests carry "
        "'Authorization: Bearer KEY' or 'x-api-key: KEY'."
    )
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
        await self.attempts.check(caller.scope)
        call = ProxiedCall(self, exchange, caller, self.store())
        await self.attempts.begin(caller.scope)
        rollout_id = None if caller.scope is None else caller.scope[0]
        try:
            call.upstream, call.response = await self.upstreams.send(
                str(chat.get("model")), call.upstream_body, rollout_id
            )
            if call.response.is_error:
                try:
                    content = await read_beginning(call.response, MAX_REFUSAL_BYTES)
                finally:
                    await call.response.aclose()
                raise UpstreamRefusedError(call.upstream, call.response, content)
        except HttpError:
            self.attempts.give_back(caller.scope)
            raise
        return call

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


class ProxiedCall:
    """One chat request that an upstream answers.

    Args:
        service: the upstreams, budgets and counters.
        exchange: the request in the agent's dialect.
        caller: the sender.
        store: records the call; None records nothing.
    """

    left_out: Sequence[str] = ()
    upstream: Upstream
    """The server that answers; set once it does."""
    response: httpx.Response
    """Its answer."""

    def __init__(self, service: ProxyService, exchange: Exchange, caller: Caller, store: LightningStore | None) -> None:
        self._service = service
        self._exchange = exchange
        self._body = exchange.chat
        self._caller = caller
        self._scope = caller.scope
        self._store = store
        self._start_time = time.time()
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
        return await off_loop(size, lambda: encode_in_steps(self._exchange.answer(completion)))

    async def events(self) -> AsyncGenerator[bytes, None]:
        with self._reading():
            async for chunk in read_events(self.response):
                self._take(chunk)
                usage_alone = not chunk.get("choices") and bool(chunk.get("usage"))
                if not (usage_alone and self._adds_usage):
                    yield self._exchange.events(chunk)
        if not self._answer.choices:
            raise UpstreamError(self.upstream, "ended a stream in which there was no answer")
        await self._record()
        yield await off_loop(size_of(self._body, LARGE), self._exchange.end)  # a dialect may keep the conversation

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
        self._service.tokens.update({"prompt": prompt, "cached": answer.cached_tokens, "completion": sampled})
        self._service.attempts.spend(self._scope, prompt + sampled)

    def upstream_body(self, upstream: Upstream) -> dict[str, Any]:
        """Return the body for an upstream."""
        body = upstream.body(self._body, recorded=self._scope is not None)
        if self._adds_usage:
            body["stream_options"] = {**(self._body.get("stream_options") or {}), "include_usage": True}
        return body

    @property
    def _adds_usage(self) -> bool:
        """True if a stream must report token counts for the budget though the agent did not request them."""
        requested = (self._body.get("stream_options") or {}).get("include_usage")
        bounded = self._scope is not None and self._service.attempts.limits.max_rollout_tokens is not None
        return self.streams and not requested and bounded

    def _take(self, part: dict[str, Any]) -> None:
        if part.get("error"):
            raise UpstreamError(self.upstream, f"ended its answer with an error: {error_text(part['error'])}")
        try:
            self._answer.take(part)
        except (TypeError, ValueError, AttributeError, LookupError, OverflowError) as error:
            raise UpstreamError(self.upstream, f"sent an answer that is not a chat completion: {error}") from error

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except httpx.ReadTimeout as error:
            raise self._service.upstreams.silent(self.upstream) from error
        except httpx.RequestError as error:
            problem = f"broke off its answer for model {self.upstream.name!r}: {type(error).__name__}: {error}"
            raise UpstreamError(self.upstream, problem, code="upstream_broken") from error
        except UnreadableAnswerError as error:
            raise UpstreamError(self.upstream, str(error)) from error

    async def _record(self) -> None:
        self._recorded = True
        if self._scope is None or self._store is None:
            return
        answer, body = self._answer, self._body
        temperature = 1.0 if body.get("temperature") is None else float(body["temperature"])
        settings = {name: value for name, field in _SETTINGS if isinstance(value := body.get(field), int | float)}
        for index, choice in answer.choices.items():
            recorded = RecordedAnswer(
                caller=self._caller,
                response_id=answer.id,
                model=self.upstream.name,
                messages=body["messages"],
                tools=body.get("tools") or [],
                settings={CompletionSpanAttributes.REQUEST_TEMPERATURE: temperature, **settings},
                start_time=self._start_time,
                index=index,
                message=choice.message,
                finish_reason=choice.finish_reason or "cancelled",
                prompt_ids=answer.prompt_ids,
                token_ids=choice.token_ids,
                logprobs=choice.logprobs,
            )
            await record_answer(self._store, recorded)
