"""The backend of the gateway that samples: prepares each chat request, from the messages to what is sampled."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from ...http import LARGE, BadRequestError, MetricFamily, off_loop, size_of
from ...samplers import ContextLengthError, Sampler
from ...store import LightningStore
from ...tokens import CompletionRecord, Delivery, SamplingParams, TokenRequest
from ..constraints.compiler import ConstraintCompiler
from ..constraints.rules import answer_rule
from ..dialects import (
    Caller,
    CallScope,
    ChatRequest,
    CompletionsDialect,
    Dialect,
    Exchange,
    parse_chat_request,
    shared_dialects,
)
from ..errors import BeyondContextError, UnknownModelError
from ..render.decoding import AnswerReader
from ..render.messages import plain_messages
from ..render.renderer import ChatRenderer
from ..settings import GatewayLimits
from .call import CallContext, ChatCall, Counters
from .choice import Choice
from .record import TOKENS_HELP, RolloutAttempts
from .remember import ConversationMemory, Prompt

_MAX_ID: Final = 2**31


class ChatService(CallContext):
    """A `Backend` that answers chat requests from one sampler. Used from one event loop.

    Args:
        sampler: samples the answers.
        renderer: renders the prompts.
        model_name: public name of the model.
        default_adapter: the adapter behind that name; None is the base model.
        store: records calls under a rollout's URL; without a store such URLs are refused.
        limits: limits of rollouts, and of compiling a grammar.
    """

    title = "mini-agentic-rl gateway"
    about = "An OpenAI-compatible endpoint on a model in this process"
    owner = "mini-agentic-rl"

    def __init__(
        self,
        sampler: Sampler,
        renderer: ChatRenderer,
        model_name: str,
        default_adapter: str | None,
        store: LightningStore | None,
        limits: GatewayLimits,
    ) -> None:
        self.sampler = sampler
        self.renderer = renderer
        self.model_name = model_name
        self.store = store
        self.records = store is not None
        self.counters = Counters()
        self.dialects: Sequence[Dialect] = [*shared_dialects(), CompletionsDialect()]
        self.memory = ConversationMemory(renderer)
        self.expert_prefixes: dict[str, Sequence[CompletionRecord]] = {}
        self._default_adapter = default_adapter
        self.attempts = RolloutAttempts(limits, lambda: store, self.expert_prefixes)
        self.constraints = ConstraintCompiler(renderer.tokenizer, renderer.eos_ids, limits=limits)

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys([self.model_name, *self.sampler.model_names]))

    @property
    def context_length(self) -> int:
        return self.sampler.context_length

    def parse(self, dialect: Dialect, body: dict[str, Any], exchange: Exchange) -> tuple[ChatRequest, Sequence[str]]:
        return parse_chat_request(exchange.chat), dialect.left_out(body)

    async def begin(self, request: ChatRequest, exchange: Exchange, caller: Caller, key: str) -> ChatCall:
        """Prepare a request, and begin to sample it if it is streamed. A call without a seed takes one of its rollout,
        if that has a seed.

        Args:
            request: the request.
            exchange: translates the answer.
            caller: the sender.
            key: API key of the client, which separates clients outside of rollouts.

        Raises:
            BadRequestError: the messages or a field cannot be served.
            UnknownModelError: the model is not served.
            NotFoundError: the server has no store, or the store does not know the attempt.
            RecordingError: the store does not answer.
            ContextLengthError: the prompt leaves no room for an answer.
            RolloutBudgetError: the attempt has used up its calls or tokens.
        """
        adapter, scope = self._adapter(request.model), caller.scope
        attempt = await self.attempts.find(scope)

        # Render.
        self._check_count(request)
        size = _size(request)
        # A template with further variables is probed anew, which takes long.
        renderer = await off_loop(LARGE if request.template_settings else 0, lambda: self._renderer_of(request))
        prompt = await off_loop(size, lambda: self._prompt(scope, request, renderer))
        if request.raw_prompt is not None:
            text = self.renderer.tokenizer.decode(prompt.ids, skip_special_tokens=False)
            request = request.model_copy(update={"messages": [{"role": "user", "content": text}]})

        # Constrain.
        template = renderer.template
        # A continued text has its thought before it, and a raw prompt has none.
        begins = request.raw_prompt is None and not request.continue_final_message
        tags, form = template.tags if begins else None, request.form.value if request.form else None
        rule = await off_loop(
            len(form) if isinstance(form, str) else size,
            lambda: answer_rule(request, renderer.tool_format, tags, template.thought_begun),
        )
        constraint = None if rule is None else await self.constraints.compile(rule)
        prefix, prompt_ids = "", prompt.ids
        if request.must_call and rule is None:
            prefix = renderer.forced_prefix(request.must_call_name)
            prompt_ids = (*prompt.ids, *renderer.forced_ids(request.must_call_name))
        tools = request.offered_tools
        one_call = request.parallel_tool_calls is False and bool(tools) and constraint is None

        # Limit. The budget comes last of all that waits: a client that leaves before it has used nothing.
        room = self.sampler.context_length - len(prompt_ids)
        if room < 1:
            raise ContextLengthError(len(prompt_ids), self.sampler.context_length)
        self._check_ids(request)
        left = await attempt.begin(len(prompt_ids))
        if left is not None:
            room = max(1, min(room, left // request.choices))

        seed = attempt.next_seed() if request.seed is None else request.seed
        recorded = None
        if request.choices == 1 and not request.top_logprobs:
            recorded = attempt.next_recorded(prompt_ids)
        # If the text may end the answer, no token should be sampled after that.
        ends_itself = bool(request.stop_strings) or one_call
        delivery: Delivery = "stepwise" if ends_itself else "joined" if request.stream else "whole"
        response_id = f"chatcmpl-{uuid.uuid4().hex}"
        name = "" if scope is None else "/".join(scope)
        indices = range(request.choices)
        call = ChatCall(
            self,
            exchange,
            request,
            caller,
            attempt,
            prompt,
            prompt_ids,
            token_requests=tuple(
                TokenRequest(
                    prompt_ids,
                    self._sampling(request, room, None if seed is None else seed + index),
                    adapter,
                    f"{response_id}/{index}",
                    affinity=name,
                    asker=(name or key, response_id),
                    delivery=delivery,
                    constraint=constraint,
                )
                for index in indices
            ),
            choices=tuple(
                Choice(
                    index,
                    self.renderer.decoder(bool(tools)),
                    end_ids=self.renderer.eos_ids,
                    stops=request.stop_strings,
                    reader=_reader(request, renderer),
                    prefix=prefix,
                    stop_ids=request.stop_token_ids or (),
                    must_call=request.must_call,
                    streamed=bool(request.stream),
                    one_call=one_call,
                )
                for index in indices
            ),
            response_id=response_id,
            recorded=recorded,
            left_out=_without_effect(request, renderer),
        )
        if call.streams:
            await call.begin()
        return call

    async def count(self, request: ChatRequest) -> int:
        """Return the number of prompt tokens if the prompt is rendered anew. A conversation that continues from
        recorded ids may have a few more or fewer.

        Raises:
            BadRequestError: the messages cannot be served.
            UnknownModelError: the model is not served.
        """
        self._adapter(request.model)
        self._check_count(request)

        def count_tokens() -> int:
            renderer, messages = self._renderer_of(request), request.messages
            begun = renderer.encode_answer(messages[-1]) if request.continue_final_message else []
            return renderer.count(messages[:-1] if begun else messages, request.offered_tools) + len(begun)

        return await off_loop(_size(request), count_tokens)

    def _renderer_of(self, request: ChatRequest) -> ChatRenderer:
        """Return the renderer with the template settings of a request."""
        renderer = self.renderer.with_settings(request.template_settings)
        template, default = renderer.template, self.renderer.template
        if request.thinks is False and default.thinks and template.turns == default.turns:
            fields = ("enable_thinking", "thinking", "reasoning_effort")
            field = next(name for name in fields if getattr(request, name) is not None)
            raise BadRequestError(f"{field}: the model's chat template cannot switch thinking off", param=field)
        return renderer

    def _prompt(self, scope: CallScope, request: ChatRequest, renderer: ChatRenderer) -> Prompt:
        raw, tools = request.raw_prompt, request.offered_tools
        if raw is not None:
            ids = self.renderer.encode(raw) if isinstance(raw, str) else raw
            if not ids or not 0 <= min(ids) <= max(ids) < _MAX_ID:  # the sampler knows which ids the model has
                message = "prompt: expected text, or token ids of the model's vocabulary"
                raise BadRequestError(message, param="prompt")
            return Prompt(tuple(ids))
        messages, most = request.messages, self.sampler.context_length
        if request.continue_final_message:
            plain_messages(messages)  # an error names the place in the whole list
            prompt = self.memory.prompt(scope, messages[:-1], tools, most, renderer)
            return replace(prompt, ids=(*prompt.ids, *renderer.encode_answer(messages[-1])))
        if request.add_generation_prompt is False:
            return Prompt(tuple(renderer.render(messages, tools, False, most=most)))
        return self.memory.prompt(scope, messages, tools, most, renderer)

    def _check_count(self, request: ChatRequest) -> None:
        if len(request.messages) > self.sampler.context_length:  # each has at least one token
            raise BeyondContextError(self.sampler.context_length, messages=len(request.messages))

    def _adapter(self, model: str) -> str | None:
        if model == self.model_name:
            return self._default_adapter
        names = list(self.sampler.model_names)
        if model not in names:
            raise UnknownModelError(model, self.models)
        return None if model == names[0] else model

    def _check_ids(self, request: ChatRequest) -> None:
        vocabulary = len(self.renderer.tokenizer)
        for field, ids in (("logit_bias", request.logit_bias), ("stop_token_ids", request.stop_token_ids)):
            for token_id in ids or ():
                if not 0 <= token_id < vocabulary:
                    raise BadRequestError(
                        f"{field}: token id {token_id} is outside of the vocabulary of {vocabulary}", param=field
                    )

    def _sampling(self, request: ChatRequest, room: int, seed: int | None) -> SamplingParams:
        limit = min(request.max_completion_tokens or request.max_tokens or room, room)
        return SamplingParams(
            temperature=1.0 if request.temperature is None else request.temperature,
            top_p=1.0 if request.top_p is None else request.top_p,
            top_k=max(request.top_k or 0, 0),
            min_p=request.min_p or 0.0,
            max_tokens=limit,
            seed=seed,
            min_tokens=min(request.min_tokens or 0, limit),
            stop_token_ids=(*(() if request.ignore_eos else self.renderer.eos_ids), *(request.stop_token_ids or ())),
            top_logprobs=(request.top_logprobs or 0) if request.logprobs else 0,
            logit_bias=request.logit_bias or {},
            presence_penalty=request.presence_penalty or 0.0,
            frequency_penalty=request.frequency_penalty or 0.0,
            repetition_penalty=request.repetition_penalty or request.repeat_penalty or 1.0,
        )

    def forget(self, scope: CallScope) -> None:
        self.memory.forget(scope)

    def facts(self) -> dict[str, Any]:
        return {
            "model": self.model_name,
            "models": self.models,
            "context_length": self.context_length,
            "requests": vars(self.counters),
            "conversations": self.memory.counters(),
        }

    def metric_counters(self) -> Iterable[MetricFamily]:
        counters = self.counters
        tokens = {
            "prompt": counters.prompt_tokens,
            "cached": counters.cached_tokens,
            "completion": counters.completion_tokens,
        }
        prompts = {kind: count for kind, count in self.memory.prompt_counts().items() if kind != "forked"}
        yield MetricFamily.by_kind("tokens", TOKENS_HELP, tokens)
        yield MetricFamily.by_kind(
            "prompts", "Prompts that began, continued or forked a conversation, and why.", prompts
        )

    def metric_gauges(self) -> Iterable[MetricFamily]:
        load = self.sampler.load()
        counters = self.memory.counters()
        remembered = {kind: counters[kind] for kind in ("attempts", "tokens")}
        yield MetricFamily.by_kind("sequences", "Answers being sampled, and waiting for their turn.", load.sequences)
        yield MetricFamily.by_kind(
            "kv_blocks", "Blocks of the key/value cache: in use, kept for reuse, free.", load.kv_blocks
        )
        yield MetricFamily.by_kind(
            "remembered", "Attempts whose conversations are remembered, and their tokens.", remembered
        )


def _reader(request: ChatRequest, renderer: ChatRenderer) -> AnswerReader | None:
    """Return the reader of an answer; None if all of it is content."""
    tools = request.offered_tools
    if request.raw_prompt is not None:
        return None
    if request.continue_final_message:  # its thought is part of the prompt
        return AnswerReader(None, renderer.tool_format.scanner(tools)) if tools else None
    return renderer.reader(tools)


def _without_effect(request: ChatRequest, renderer: ChatRenderer) -> tuple[str, ...]:
    """Return the template settings that the chat template does not use."""
    given = request.chat_template_kwargs or {}
    unused = [f"chat_template_kwargs.{name}" for name in given if name not in renderer.settings]
    if request.reasoning_effort and request.thinks and not renderer.settings:
        unused.append("reasoning_effort")
    return tuple(unused)


def _size(request: ChatRequest) -> int:
    """Return the approximate number of characters to render; counting stops soon after `LARGE`."""
    return len(request.raw_prompt or ()) + size_of(
        [request.messages, request.offered_tools, request.template_settings], LARGE
    )
