"""A chat request made ready: its prompt as token ids, how to sample after it, and the answers that are to grow."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...http import LARGE, BadRequestError, off_loop
from ...samplers import ContextLengthError, Sampler
from ...store import LightningStore
from ...tokens import CompletionRecord, Delivery, SamplingParams, TokenRequest
from ..constraints.compiler import ConstraintCompiler
from ..constraints.rules import answer_rule
from ..dialects import Caller, CallScope, ChatRequest
from ..errors import NotFoundError, TooManyMessagesError, UnknownModelError
from ..render.decoding import AnswerReader
from ..render.messages import plain_messages
from ..render.renderer import ChatRenderer
from ..settings import GrammarLimits
from .choice import Choice
from .record import KnownAttempts, RolloutBudgets
from .remember import ConversationMemory, Prompt

_MOST_IDS = 2**31
"""Ids of every vocabulary are below this."""
_BESIDE = 16
"""Characters that an item of a list, or a field, counts for beside its text, for what the template writes around it."""


@dataclass(frozen=True)
class PreparedChat:
    """A request that can be sampled."""

    request: ChatRequest
    caller: Caller
    prompt: Prompt
    prompt_ids: tuple[int, ...]
    """The ids to sample after: the prompt, and the start of a forced tool call where no grammar can force it."""
    token_requests: tuple[TokenRequest, ...]
    """One for each choice."""
    choices: tuple[Choice, ...]
    response_id: str
    start_time: float
    tools: list[dict[str, Any]]
    recorded: CompletionRecord | None = None
    """The recorded call that answers it; None samples."""
    left_out: tuple[str, ...] = ()
    """Settings of the chat template that have no effect."""

    @property
    def scope(self) -> CallScope:
        """(rollout id, attempt id) that the request belongs to; None outside of any rollout."""
        return self.caller.scope

    def message(self, choice: Choice) -> dict[str, Any] | None:
        """Return a complete answer as the message with which the conversation can go on; None where it cannot."""
        request = self.request
        if request.raw_prompt is not None:
            return None
        (message,) = plain_messages([choice.message()])
        if request.continue_final_message:
            (begun,) = plain_messages(request.messages[-1:])
            return {**begun, **message, "content": begun["content"] + message["content"]}
        return None if request.add_generation_prompt is False else message


class Preparation:
    """Turns requests into what the sampler is asked. Used from one event loop.

    Args:
        sampler: will sample the answers.
        renderer: renders the prompts.
        model_name: the public name of the model.
        default_adapter: what that name stands for; None is the base model alone.
        store: where calls under a rollout's URL are recorded; without one such URLs are refused.
        budgets: how much each attempt may ask for; None sets no bound.
        grammars: what the form of an answer may take to be compiled.
    """

    def __init__(
        self,
        sampler: Sampler,
        renderer: ChatRenderer,
        model_name: str,
        default_adapter: str | None = "default",
        store: LightningStore | None = None,
        budgets: RolloutBudgets | None = None,
        grammars: GrammarLimits | None = None,
    ) -> None:
        self.sampler = sampler
        self.renderer = renderer
        self.model_name = model_name
        self.store = store
        self.budgets = budgets
        self.memory = ConversationMemory(renderer)
        """The calls served so far, so that a conversation that goes on continues from its recorded ids."""
        self.expert_prefixes: dict[str, Sequence[CompletionRecord]] = {}
        self._default_adapter = default_adapter
        self._attempts = None if store is None else KnownAttempts(store, self.expert_prefixes)
        self._constraints = ConstraintCompiler(renderer.tokenizer, renderer.eos_ids, limits=grammars)

    def close(self) -> None:
        """End the process that tries grammars, until one is needed again."""
        self._constraints.close()

    @property
    def models(self) -> list[str]:
        """Names that may be asked for."""
        return list(dict.fromkeys([self.model_name, *self.sampler.model_names]))

    async def make(self, request: ChatRequest, caller: Caller, key: str = "") -> PreparedChat:
        """Prepare a request. A call without a seed takes its rollout's, if that has one.

        Args:
            request: the request.
            caller: whose it is.
            key: API key that it came with, by which those outside of rollouts are told apart.

        Raises:
            BadRequestError: the messages or a field cannot be served.
            UnknownModelError: it asks for a model that is not served.
            NotFoundError: a rollout's URL on a server without a store, or of an attempt that the store does not know.
            RecordingError: the store does not answer.
            ContextLengthError: the prompt leaves no room for an answer.
            RolloutBudgetError: the attempt has used up what it may ask for.
        """
        adapter, scope = self._adapter(request.model), caller.scope
        if scope is not None and self.store is None:
            raise NotFoundError(
                "this server records no rollouts: ask it at /v1, or start it with a store", code="no_store"
            )
        if self._attempts is not None:
            await self._attempts.check(scope)
        self._check_count(request)
        tools = request.offered_tools
        size, settings = _size(request, tools), request.template_settings
        # a template with further variables is found out about anew
        renderer = await off_loop(LARGE if settings else 0, lambda: self._renderer_of(request))
        prompt = await off_loop(size, lambda: self._prompt(scope, request, tools, renderer))
        if request.raw_prompt is not None:
            text = self.renderer.tokenizer.decode(prompt.ids, skip_special_tokens=False)
            request = request.model_copy(update={"messages": [{"role": "user", "content": text}]})
        template = renderer.template
        # Text that is continued has its thought behind it, and a raw prompt has none.
        begins = request.raw_prompt is None and not request.continue_final_message
        tags, asked = template.tags if begins else None, request.form.value if request.form else None
        rule = await off_loop(
            len(asked) if isinstance(asked, str) else size,
            lambda: answer_rule(request, renderer.tool_format, tags, template.thought_begun),
        )
        constraint = None if rule is None else await self._constraints.compile(rule)
        prefix = ""
        if request.must_call and rule is None:
            prefix = renderer.forced_prefix(request.must_call_name)
        one_call = request.one_call and constraint is None
        forced_ids = renderer.forced_ids(request.must_call_name) if prefix else ()
        prompt_ids = (*prompt.ids, *forced_ids) if prefix else prompt.ids
        room = self.sampler.context_length - len(prompt_ids)
        if room < 1:
            raise ContextLengthError(len(prompt_ids), self.sampler.context_length)
        self._check_ids(request)
        # Last of all that waits: a client that leaves before it has used up nothing.
        left = None if self.budgets is None else await self.budgets.begin(scope, len(prompt_ids))
        if left is not None:
            room = max(1, min(room, left // request.choices))
        seed = request.seed
        if seed is None and self._attempts is not None:
            seed = self._attempts.next_seed(scope)
        recorded = None
        if self._attempts is not None and request.choices == 1 and not request.top_logprobs:
            recorded = self._attempts.next_recorded(scope, prompt_ids)
        # What an answer says may end it: then nothing should be sampled after that.
        ends_itself = bool(request.stop_strings) or one_call
        delivery: Delivery = "stepwise" if ends_itself else "joined" if request.stream else "whole"
        response_id = f"chatcmpl-{uuid.uuid4().hex}"
        attempt = "" if scope is None else "/".join(scope)
        indices = range(request.choices)
        return PreparedChat(
            request=request,
            caller=caller,
            prompt=prompt,
            prompt_ids=prompt_ids,
            token_requests=tuple(
                TokenRequest(
                    prompt_ids,
                    self._sampling(request, room, None if seed is None else seed + index),
                    adapter,
                    f"{response_id}/{index}",
                    affinity=attempt,
                    asker=(attempt or key, response_id),
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
                    reader=_reader(request, renderer, tools),
                    prefix=prefix,
                    stop_ids=request.stop_token_ids or (),
                    must_call=request.must_call,
                    streamed=bool(request.stream),
                    one_call=one_call,
                )
                for index in indices
            ),
            response_id=response_id,
            start_time=time.time(),
            tools=tools,
            recorded=recorded,
            left_out=_without_effect(request, renderer),
        )

    async def count(self, request: ChatRequest) -> int:
        """Count the tokens of a request's prompt when it is rendered anew. A conversation that continues from its
        recorded ids may have a few more or fewer.

        Raises:
            BadRequestError: the messages cannot be served.
            UnknownModelError: it asks for a model that is not served.
        """
        self._adapter(request.model)
        self._check_count(request)

        tools = request.offered_tools

        def counted() -> int:
            renderer, messages = self._renderer_of(request), request.messages
            begun = renderer.encode_answer(messages[-1]) if request.continue_final_message else []
            return renderer.count(messages[:-1] if begun else messages, tools) + len(begun)

        return await off_loop(_size(request, tools), counted)

    def _renderer_of(self, request: ChatRequest) -> ChatRenderer:
        """Return the renderer with the settings of a request.

        Raises:
            BadRequestError: the model thinks whatever its template is told.
        """
        renderer = self.renderer.with_settings(request.template_settings)
        template, usual = renderer.template, self.renderer.template
        if request.thinks is False and usual.thinks and template.turns == usual.turns:
            fields = ("enable_thinking", "thinking", "reasoning_effort")
            field = next(name for name in fields if getattr(request, name) is not None)
            raise BadRequestError(f"{field}: the model's chat template cannot switch thinking off", param=field)
        return renderer

    def _prompt(
        self, scope: CallScope, request: ChatRequest, tools: list[dict[str, Any]], renderer: ChatRenderer
    ) -> Prompt:
        if request.raw_prompt is not None:
            return self._raw_prompt(request.raw_prompt)
        messages, most = plain_messages(request.messages), self.sampler.context_length
        if request.continue_final_message:
            prompt = self.memory.prompt(scope, messages[:-1], tools, most, renderer)
            return replace(prompt, ids=(*prompt.ids, *renderer.encode_answer(messages[-1])))
        if request.add_generation_prompt is False:
            return Prompt(tuple(renderer.render(messages, tools, False, most=most)), b"", b"", ())
        return self.memory.prompt(scope, messages, tools, most, renderer)

    def _raw_prompt(self, prompt: str | list[int]) -> Prompt:
        """Return a prompt that is sampled after as it is.

        Raises:
            BadRequestError: it is empty, or holds what cannot be an id.
        """
        ids = self.renderer.encode(prompt) if isinstance(prompt, str) else prompt
        if not ids or not 0 <= min(ids) <= max(ids) < _MOST_IDS:  # which ids the model has, the sampler knows
            raise BadRequestError("prompt: expected text, or token ids of the model's vocabulary", param="prompt")
        return Prompt(tuple(ids), b"", b"", ())

    def _check_count(self, request: ChatRequest) -> None:
        if len(request.messages) > self.sampler.context_length:  # each is a token at least
            raise TooManyMessagesError(len(request.messages), self.sampler.context_length)

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
        wanted = request.max_completion_tokens or request.max_tokens or room
        return SamplingParams(
            temperature=1.0 if request.temperature is None else request.temperature,
            top_p=1.0 if request.top_p is None else request.top_p,
            top_k=max(request.top_k or 0, 0),
            min_p=request.min_p or 0.0,
            max_tokens=min(wanted, room),
            seed=seed,
            min_tokens=min(request.min_tokens or 0, wanted, room),
            stop_token_ids=(*(() if request.ignore_eos else self.renderer.eos_ids), *(request.stop_token_ids or ())),
            top_logprobs=(request.top_logprobs or 0) if request.logprobs else 0,
            logit_bias=request.logit_bias or {},
            presence_penalty=request.presence_penalty or 0.0,
            frequency_penalty=request.frequency_penalty or 0.0,
            repetition_penalty=request.repetition,
        )


def _reader(request: ChatRequest, renderer: ChatRenderer, tools: list[dict[str, Any]]) -> AnswerReader | None:
    """Return what reads an answer; None where all of it is content."""
    if request.raw_prompt is not None:
        return None
    if request.continue_final_message:  # its thought came before
        return AnswerReader(None, renderer.tool_format.scanner(tools)) if tools else None
    return renderer.reader(bool(tools), tools)


def _without_effect(request: ChatRequest, renderer: ChatRenderer) -> tuple[str, ...]:
    """Return the settings for the chat template that it does not use."""
    given = request.chat_template_kwargs or {}
    unused = [f"chat_template_kwargs.{name}" for name in given if name not in renderer.settings]
    if request.reasoning_effort and request.thinks and not renderer.settings:
        unused.append("reasoning_effort")
    return tuple(unused)


def _size(request: ChatRequest, tools: list[dict[str, Any]]) -> int:
    """Return about how many characters a request has of all that is rendered; the look ends soon after `LARGE`."""
    size, rest = len(request.raw_prompt or ()), [request.messages, tools, request.template_settings]
    while rest and size <= LARGE:
        value = rest.pop()
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, dict | list):
            size += _BESIDE * len(value)
            if size <= LARGE:
                rest += value if isinstance(value, list) else (*value, *value.values())
    return size
