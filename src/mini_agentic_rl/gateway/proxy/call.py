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
from ..completion.record import (
    TOKENS_HELP,
    CallContext,
    KnownAttempts,
    RecordedAnswer,
    RolloutBudgets,
    record_answer,
)
from ..dialects import Caller, CallScope, ChatDialect, ChatReader, Dialect, Exchange, shared_dialects
from ..errors import NotFoundError
from .reading import UnreadableAnswerError, read_beginning, read_events, read_whole
from .upstreams import MAX_REFUSAL_BYTES, Upstream, UpstreamRefusedError, Upstreams, broken, error_text, silent

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
        budgets: limits of each attempt.
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

    def __init__(
        self, upstreams: Upstreams, store: Callable[[], LightningStore | None], budgets: RolloutBudgets
    ) -> None:
        self.upstreams = upstreams
        self.store = store
        self.budgets = budgets
        self.tokens: Counter[str] = Counter()
        """Tokens of ended calls: of prompts, found in a cache, and sampled."""
        self.dialects: Sequence[Dialect] = shared_dialects()
        self._attempts: KnownAttempts | None = None

    @property
    def models(self) -> Sequence[str]:
        return self.upstreams.names

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
        store = self.store()
        if caller.scope is not None and store is None:
            raise NotFoundError("this proxy records no rollouts: ask it at /v1, or give it a store", code="no_store")
        if store is not None:
            if self._attempts is None or self._attempts.store is not store:  # the store was replaced
                self._attempts = KnownAttempts(store)
            await self._attempts.check(caller.scope)
        call = ProxiedCall(self, exchange, caller, store)
        try:
            await call.send()
        except BaseException:
            await call.end()
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
        up: dict[tuple[str, ...], float] = {(url,): value for url, value in self.upstreams.replicas.up().items()}
        yield MetricFamily("upstream_up", "Whether a server is considered reachable.", up, ("server",))


class ProxiedCall:
    """One chat request: `send`, then `whole` or `events`, and finally `end` in any case.

    Args:
        service: the upstreams, budgets and counters.
        exchange: the request in the agent's dialect.
        caller: the sender.
        store: records the call; None records nothing.
    """

    left_out: Sequence[str] = ()

    def __init__(self, service: ProxyService, exchange: Exchange, caller: Caller, store: LightningStore | None) -> None:
        self.exchange = exchange
        self.body = exchange.chat
        self.caller = caller
        self.scope = caller.scope
        self.start_time = time.time()
        self.answer = ChatReader()
        self._service = service
        self._budgets = service.budgets
        self._store = store
        self._recorded = False
        self._upstream: Upstream | None = None
        self._response: httpx.Response | None = None

    @property
    def streams(self) -> bool:
        return bool(self.body.get("stream"))

    async def send(self) -> None:
        """Send the request to an upstream.

        Raises:
            RolloutBudgetError: the attempt has used up its calls or tokens.
            HttpError: no upstream answers, or it refuses the request.
        """
        await self._budgets.begin(self.scope)
        rollout_id = None if self.scope is None else self.scope[0]
        try:
            self._upstream, self._response = await self._service.upstreams.send(
                str(self.body.get("model")), "/chat/completions", self._upstream_body, rollout_id
            )
            if self._response.is_error:
                content = await read_beginning(self._response, MAX_REFUSAL_BYTES)
                raise UpstreamRefusedError(self._upstream, self._response, content)
        except HttpError:
            self._budgets.give_back(self.scope)
            raise

    async def whole(self) -> bytes:
        upstream, response = self._sent()
        with self._reading(upstream):
            completion = await read_whole(response)
        self._take(upstream, completion)
        await self._record(upstream)
        size = size_of([self.body, completion], LARGE)  # a dialect may keep the conversation
        return await off_loop(size, lambda: encode_in_steps(self.exchange.answer(completion)))

    async def events(self) -> AsyncGenerator[bytes, None]:
        upstream, response = self._sent()
        with self._reading(upstream):
            async for chunk, weight in read_events(response):
                self._take(upstream, chunk, weight)
                if not self._is_added_usage(chunk):
                    yield self.exchange.events(chunk)
        if not self.answer.choices:
            raise broken(upstream, "ended a stream in which there was no answer")
        await self._record(upstream)
        yield await off_loop(size_of(self.body, LARGE), self.exchange.end)  # a dialect may keep the conversation

    async def end(self) -> None:
        """Close the upstream's answer, count its tokens, and record the beginning of an interrupted one."""
        if self._upstream is None or self._response is None:
            return
        await self._response.aclose()
        if not self._recorded and self.answer.choices:
            for choice in self.answer.choices.values():
                choice.finish_reason = choice.finish_reason or "cancelled"
            with suppress(HttpError):  # it is logged, and the client has gone
                await self._record(self._upstream)
        prompt, sampled = self.answer.prompt_tokens, self.answer.completion_tokens
        self._service.tokens.update({"prompt": prompt, "cached": self.answer.cached_tokens, "completion": sampled})
        self._budgets.spend(self.scope, prompt + sampled)

    def _upstream_body(self, upstream: Upstream) -> dict[str, Any]:
        body = upstream.body(self.body, recorded=self.scope is not None)
        if self._adds_usage:
            body["stream_options"] = {**(self.body.get("stream_options") or {}), "include_usage": True}
        return body

    @property
    def _adds_usage(self) -> bool:
        """True if a stream must report token counts for the budget though the agent did not request them."""
        requested = (self.body.get("stream_options") or {}).get("include_usage")
        return self.streams and not requested and self.scope is not None and self._budgets.counts_tokens

    def _is_added_usage(self, chunk: dict[str, Any]) -> bool:
        """Return True for a chunk of token counts that the agent did not request."""
        return self._adds_usage and not chunk.get("choices") and bool(chunk.get("usage"))

    def _sent(self) -> tuple[Upstream, httpx.Response]:
        if self._upstream is None or self._response is None:
            raise RuntimeError("the request has not been sent")
        return self._upstream, self._response

    def _take(self, upstream: Upstream, part: dict[str, Any], weight: int = 0) -> None:
        if part.get("error"):
            raise broken(upstream, f"ended its answer with an error: {error_text(part['error'])}")
        try:
            self.answer.take(part, weight)
        except (TypeError, ValueError, AttributeError, LookupError, OverflowError) as error:
            raise broken(upstream, f"sent an answer that is not a chat completion: {error}") from error

    @contextmanager
    def _reading(self, upstream: Upstream) -> Iterator[None]:
        try:
            yield
        except httpx.ReadTimeout as error:
            raise silent(upstream, self._service.upstreams.silence(upstream)) from error
        except httpx.RequestError as error:
            problem = f"broke off its answer for model {upstream.name!r}: {type(error).__name__}: {error}"
            raise broken(upstream, problem, code="upstream_broken") from error
        except UnreadableAnswerError as error:
            raise broken(upstream, str(error)) from error

    async def _record(self, upstream: Upstream) -> None:
        self._recorded = True
        if self.scope is None or self._store is None:
            return
        answer, temperature = self.answer, self.body.get("temperature")
        context = CallContext(
            rollout_id=self.scope[0],
            attempt_id=self.scope[1],
            response_id=answer.id,
            model=upstream.name,
            messages=self.body["messages"],
            tools=self.body.get("tools") or [],
            prompt_ids=answer.prompt_ids,
            temperature=1.0 if temperature is None else float(temperature),
            start_time=self.start_time,
            agent=self.caller.agent,
            traceparent=self.caller.traceparent,
            settings={
                name: value for name, field in _SETTINGS if isinstance(value := self.body.get(field), int | float)
            },
        )
        for index, choice in answer.choices.items():
            recorded = RecordedAnswer(
                index=index,
                message=choice.message,
                finish_reason=choice.finish_reason or "cancelled",
                token_ids=choice.token_ids,
                logprobs=choice.logprobs,
            )
            await record_answer(self._store, context, recorded, time.time())
