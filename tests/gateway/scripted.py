"""A sampler that says what it is told to, token by token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from mini_agentic_rl.samplers import ContextLengthError, SamplerLoad
from mini_agentic_rl.tokens import FinishReason, TokenDelta, TokenRequest

Script = Callable[[TokenRequest], str]


class ScriptedSampler:
    """Answers each request with the next text (the last one again and again), or with what a function says.

    Log-probabilities are -0.5, -1.0, -1.5, ... A `failure` is raised before anything is sampled, `breaks` after the
    first tokens.
    """

    def __init__(
        self,
        tokenizer,
        answers: Sequence[str] | Script,
        *,
        delay: float = 0.0,
        tokens_per_delta: int = 1,
        context_length: int = 4096,
        adapters: Sequence[str] = ("default",),
        failure: Exception | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.model_names = ["base", *adapters]
        self.context_length = context_length
        self.requests: list[TokenRequest] = []
        self.closed_early = 0
        self.active = 0
        self.failure = failure
        self.breaks: Exception | None = None
        self.learns_after: int | None = None
        """Tokens of an answer after which the policy version goes from 3 to 4."""
        self._answers = answers
        self._delay = delay
        self._step = tokens_per_delta

    def load(self) -> SamplerLoad:
        return SamplerLoad(sequences={"running": self.active, "waiting": 0})

    async def complete(self, request: TokenRequest) -> AsyncGenerator[TokenDelta, None]:
        if self.failure is not None:
            raise self.failure
        if len(request.prompt_ids) >= self.context_length:
            raise ContextLengthError(len(request.prompt_ids), self.context_length)
        self.requests.append(request)
        ids = self._ids(request)
        reason: FinishReason = "stop" if len(ids) <= request.sampling.max_tokens else "length"
        ids = ids[: request.sampling.max_tokens]
        self.active += 1
        complete = False
        try:
            for start in range(0, len(ids), self._step):
                await asyncio.sleep(self._delay)
                part = ids[start : start + self._step]
                last = start + self._step >= len(ids)
                top = request.sampling.top_logprobs
                complete = last
                yield TokenDelta(
                    token_ids=tuple(part),
                    logprobs=tuple(-0.5 * (start + offset + 1) for offset in range(len(part))),
                    top_logprobs=tuple(tuple((id_, -0.5) for _ in range(top)) for id_ in part) if top else (),
                    finish_reason=reason if last else None,
                    version=3 if self.learns_after is None or start < self.learns_after else 4,
                    cached_tokens=5 if start == 0 else 0,
                )
                if self.breaks is not None:
                    raise self.breaks
        finally:
            self.active -= 1
            self.closed_early += not complete

    def _ids(self, request: TokenRequest) -> list[int]:
        if callable(self._answers):
            text = self._answers(request)
        else:
            text = self._answers[min(len(self.requests), len(self._answers)) - 1]
        return [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]
