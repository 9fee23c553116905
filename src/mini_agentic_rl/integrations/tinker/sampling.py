"""Continuations of a prompt by the engine, and the log-probabilities of the prompt itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from ...policy import Policy
from ...samplers import PolicySampler
from ...tokens import SamplingParams, TokenRequest
from .losses import TargetSequence, check_ids, pack_targets
from .protobuf import SampleAnswer, SampledTokens, TopTokens
from .requests import SampleRequest, SamplingBody
from .settings import RefusedError
from .training import SamplerSlots, SavedWeights

# Log-probabilities of prompts: of their own tokens, of the most likely tokens, of tokens that the client names.
#
# Requests that wait for the same weights are batched; a common prefix is computed once.


Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

_AT_ONCE: Final = 16384
"""Tokens that are scored in one turn of the torch thread."""


@dataclass(frozen=True)
class ScoreRequest(TargetSequence):
    """Log-probabilities to compute in one sequence: of its targets, or with `top_k` of that many most likely tokens
    in their places."""

    top_k: int = 0


PromptScores: TypeAlias = tuple[Floats, Ints | None]
"""Log-probabilities [N] and None, or with `top_k` log-probabilities and token ids [N, K]."""


class PromptScorer:
    """Scores prompts under one adapter or none, in batches. Used from one event loop.

    Args:
        max_tokens: most packed tokens of a pass.
        head_rows: LM-head chunk size, in tokens.
    """

    def __init__(self, policy: Policy, *, max_tokens: int, head_rows: int) -> None:
        self._policy = policy
        self._max_tokens = max_tokens
        self._head_rows = head_rows
        self._waiting: dict[tuple[str | None, int], list[tuple[ScoreRequest, asyncio.Future[PromptScores]]]] = {}
        self._serving: set[asyncio.Task[None]] = set()

    async def score(self, request: ScoreRequest, adapter: str | None) -> PromptScores:
        """Return the log-probabilities of a request, at temperature 1."""
        if not request.place_N.size:
            wide = (0, request.top_k) if request.top_k else (0,)
            return np.empty(wide, np.float32), np.empty(wide, np.int64) if request.top_k else None
        kind = (adapter, request.top_k)
        queue = self._waiting.setdefault(kind, [])
        scores: asyncio.Future[PromptScores] = asyncio.get_running_loop().create_future()
        queue.append((request, scores))
        if len(queue) == 1:
            # A separate task: the request that began a batch may be cancelled while others wait for it.
            serving = asyncio.create_task(self._serve(kind))
            self._serving.add(serving)
            serving.add_done_callback(self._serving.discard)
        return await scores

    async def _serve(self, kind: tuple[str | None, int]) -> None:
        # Requests that arrive until the torch thread is free join the batch.
        await self._policy.run_async(lambda: None, brief=True)
        while kind in self._waiting:
            await self._score_batch(kind)

    async def _score_batch(self, kind: tuple[str | None, int]) -> None:
        queue = self._waiting[kind]
        count = size = 0
        while count < len(queue) and (count == 0 or size + queue[count][0].tokens_T.size <= _AT_ONCE):
            size += queue[count][0].tokens_T.size
            count += 1
        batch, rest = queue[:count], queue[count:]
        if rest:
            self._waiting[kind] = rest
        else:
            del self._waiting[kind]
        try:
            requests = [each for each, _ in batch]
            scored = await self._policy.run_async(lambda: self._scored(requests, *kind), brief=True)
        except Exception as error:  # any error fails all requests of this pass
            for _, scores in batch:
                if not scores.done():
                    scores.set_exception(error)
            return
        for (_, scores), each in zip(batch, scored, strict=True):
            if not scores.done():
                scores.set_result(each)

    def _scored(self, batch: Sequence[ScoreRequest], adapter: str | None, top_k: int) -> list[PromptScores]:
        packed = pack_targets(batch)
        scorer = self._policy.scorer(adapter, max_tokens=self._max_tokens, head_rows=self._head_rows)
        ends = np.cumsum([each.place_N.size for each in batch])[:-1]
        if not top_k:
            return [(each, None) for each in np.split(scorer.logprobs(packed).float().cpu().numpy(), ends)]
        best = scorer.likeliest(packed, top_k)
        ids = np.arange(best.logprobs_SK.shape[1])[None].repeat(packed.term_count, 0)
        logprobs = best.logprobs_SK.numpy()
        if best.tokens_SK is not None:
            ids = best.tokens_SK.numpy()
        else:  # the whole vocabulary in its order: sort it by probability
            order = np.argsort(-logprobs, axis=1, kind="stable")
            ids, logprobs = np.take_along_axis(ids, order, 1), np.take_along_axis(logprobs, order, 1)
        return list(zip(np.split(logprobs, ends), np.split(ids, ends), strict=True))


_MOST_TOP_TOKENS: Final = 1 << 21
"""Most top tokens in one answer, over all positions."""


class ClientSampler:
    """Samples and scores for all clients. Used from one event loop.

    Args:
        tokenizer: decodes sampled tokens to look for stop texts.
        eos_ids: stop tokens of a request without `stop`.
    """

    def __init__(
        self,
        policy: Policy,
        slots: SamplerSlots,
        scorer: PromptScorer,
        tokenizer: Any,
        eos_ids: Sequence[int],
    ) -> None:
        model = policy.model
        self._slots = slots
        self._scorer = scorer
        self._tokenizer = tokenizer
        self._eos_ids = tuple(eos_ids)
        self._vocabulary = model.vocab_size
        self._context_length = model.context_length
        # The engine's queue is bounded; further continuations wait here.
        self._places = asyncio.Semaphore(policy.engine.settings.max_waiting)
        self._engine = PolicySampler(policy.engine, base_name="base", adapters=(), context_length=model.context_length)

    async def sample(self, given: SampleRequest, weights: SavedWeights | None) -> SampleAnswer:
        """Return continuations of the prompt, and the requested log-probabilities of the prompt."""
        body, prompt_T = given.body, given.prompt_T
        if not prompt_T.size:
            raise RefusedError("the prompt is empty")
        check_ids(prompt_T, "the prompt", self._vocabulary)
        room = self._context_length - prompt_T.size
        if room < 1:
            raise RefusedError(
                f"the prompt has {prompt_T.size} tokens, but the context holds {self._context_length}, answer included"
            )
        if body.prompt_alt_tokens_k:
            raise RefusedError("prompt_alt_tokens_k is not served here: sample the prompt's beginnings instead")
        scored = _score_requests(given, self._vocabulary)
        sampling, stop_texts = self._sampling(body.sampling_params, body.topk_sample_logprobs, room)
        _check_top_tokens(sampling.top_logprobs * sampling.max_tokens * body.num_samples, "topk_sample_logprobs")
        async with self._slots.holding(weights) as adapter, contextlib.AsyncExitStack() as stack:
            request = TokenRequest(
                tuple(prompt_T.tolist()), sampling, adapter, delivery="stepwise" if stop_texts else "whole"
            )
            # If one continuation fails or the request is cancelled, the others are cancelled.
            group: list[asyncio.Future[tuple[SampledTokens, int]]] = []
            stack.push_async_callback(_cancel, group)
            scores = asyncio.gather(*(self._scorer.score(each, adapter) for each in scored.values()))
            stack.push_async_callback(_cancel, [scores])
            for number in range(body.num_samples):
                # Acquired before the continuation is created, so that a request of a thousand samples waits its turn.
                await self._places.acquire()
                each = replace(request, sampling=_numbered(sampling, number))
                continuation = asyncio.ensure_future(self._sampled(each, stop_texts))
                continuation.add_done_callback(lambda _: self._places.release())
                group.append(continuation)
            continuations, prompt_scores = await asyncio.gather(asyncio.gather(*group), scores)
        return SampleAnswer(
            sequences=[tokens for tokens, _ in continuations],
            cached_tokens=max(cached for _, cached in continuations),
            **_scores_of_answer(given, scored, prompt_scores),
        )

    def _sampling(self, given: SamplingBody, top_logprobs: int, room: int) -> tuple[SamplingParams, tuple[str, ...]]:
        """Return the sampling parameters of a request, and its stop texts."""
        stops = [given.stop] if isinstance(given.stop, str) else list(given.stop or ())
        texts = tuple(each for each in stops if isinstance(each, str))
        ids = tuple(each for each in stops if isinstance(each, int))
        if "" in texts:
            raise RefusedError("sampling_params.stop holds an empty text")
        check_ids(np.array(ids, np.int64), "sampling_params.stop", self._vocabulary)
        is_endless = given.stop is not None and not stops  # an empty list turns off the stop tokens too
        try:
            params = SamplingParams(
                temperature=given.temperature,
                top_p=given.top_p,
                top_k=max(0, given.top_k),
                max_tokens=min(room, given.max_tokens or room),
                seed=given.seed,
                stop_token_ids=() if is_endless else (*self._eos_ids, *ids),
                top_logprobs=min(top_logprobs, self._vocabulary),
            )
        except ValueError as error:
            raise RefusedError(f"sampling_params: {error}") from None
        return params, texts

    async def _sampled(self, request: TokenRequest, texts: tuple[str, ...]) -> tuple[SampledTokens, int]:
        tokens: list[int] = []
        logprobs: list[float] = []
        top_logprobs: list[tuple[tuple[int, float], ...]] = []
        reason, cached = "length", 0
        async with contextlib.aclosing(self._engine.complete(request)) as deltas:
            async for delta in deltas:
                cached = cached or delta.cached_tokens
                for number, token in enumerate(delta.token_ids):
                    tokens.append(token)
                    logprobs.append(delta.logprobs[number])
                    if delta.top_logprobs:
                        top_logprobs.append(delta.top_logprobs[number])
                    if texts and self._ends(tokens, texts):
                        reason = "stop"
                        break
                if delta.finish_reason == "cancelled":
                    raise RefusedError(
                        "the model gave no probabilities: are its weights damaged, or the learning rate too large?"
                    )
                if delta.finish_reason == "stop":
                    reason = "stop"
                if reason == "stop":
                    break
        rows = None
        if top_logprobs:
            width = request.sampling.top_logprobs
            rows = _no_top_tokens(len(top_logprobs), width)
            for row, pairs in enumerate(top_logprobs):
                for column, (token, logprob) in enumerate(pairs[:width]):
                    rows.token_ids[row, column], rows.logprobs[row, column] = token, logprob
        return SampledTokens(tokens, logprobs, "stop" if reason == "stop" else "length", rows), cached

    def _ends(self, tokens: list[int], texts: tuple[str, ...]) -> bool:
        """Return True if one of `texts` is at the end of the text so far, or just before it."""
        longest = max(len(text.encode()) for text in texts)
        # A token is at least one byte, but for a prefix that decodes to nothing.
        tail = str(self._tokenizer.decode(tokens[-(longest + 4) :], skip_special_tokens=False))
        return any(text in tail for text in texts)


def _score_requests(given: SampleRequest, vocabulary: int) -> dict[str, ScoreRequest]:
    """Return the log-probabilities that are requested of a prompt, by their field in the answer."""
    body, prompt_T, length = given.body, given.prompt_T, given.prompt_T.size
    last = body.prompt_logprobs_last_n
    if last is not None and not (body.prompt_logprobs and last < length):
        raise RefusedError("prompt_logprobs_last_n needs prompt_logprobs, and is at most the prompt's length - 1")
    places = np.arange(1 if last is None else length - last, length, dtype=np.int64)
    width = min(body.topk_prompt_logprobs, vocabulary)
    _check_top_tokens(width * places.size, "topk_prompt_logprobs")
    requests: dict[str, ScoreRequest] = {}
    if body.prompt_logprobs:
        requests["prompt_logprobs"] = ScoreRequest(prompt_T, places - 1, prompt_T[places])
    if width:
        requests["prompt_top_tokens"] = ScoreRequest(prompt_T, places - 1, prompt_T[places], top_k=width)
    if given.targets is not None:
        if given.targets.ndim != 2 or given.targets.shape[0] != length - 1:
            raise RefusedError(f"target_prompt_logprobs must be whole numbers [{length - 1}, K]")
        wanted = given.targets >= 0
        if not wanted.any():
            raise RefusedError("target_prompt_logprobs names no token")
        check_ids(given.targets[wanted], "target_prompt_logprobs", vocabulary)
        requests["target_logprobs"] = ScoreRequest(prompt_T, np.nonzero(wanted)[0], given.targets[wanted])
    return requests


def _scores_of_answer(
    given: SampleRequest, requests: Mapping[str, ScoreRequest], scores: Sequence[PromptScores]
) -> dict[str, Any]:
    """Return the scores of a prompt as fields of the answer."""
    fields: dict[str, Any] = {}
    for (name, request), (logprobs, token_ids) in zip(requests.items(), scores, strict=True):
        if name == "prompt_logprobs":
            fields[name] = np.full(given.prompt_T.size, np.nan, np.float32)
            fields[name][request.place_N + 1] = logprobs
        elif name == "prompt_top_tokens":
            fields[name] = _no_top_tokens(given.prompt_T.size, request.top_k)
            fields[name].token_ids[request.place_N + 1] = token_ids
            fields[name].logprobs[request.place_N + 1] = logprobs
        elif given.targets is not None:
            fields[name] = np.zeros(given.targets.shape, np.float32)
            fields[name][given.targets >= 0] = logprobs
    return fields


def _check_top_tokens(count: int, field: str) -> None:
    if count > _MOST_TOP_TOKENS:
        raise RefusedError(
            f"{field} asks for up to {count} tokens in one answer, and {_MOST_TOP_TOKENS} are the most: ask for fewer, "
            "or in several requests"
        )


def _numbered(sampling: SamplingParams, number: int) -> SamplingParams:
    """Return the settings of one of several continuations: a seed is derived for each."""
    if sampling.seed is None or number == 0:
        return sampling
    seed = int(np.random.SeedSequence([abs(sampling.seed), number]).generate_state(1, np.uint64)[0] >> 1)
    return replace(sampling, seed=seed)


def _no_top_tokens(count: int, width: int) -> TopTokens:
    """Return rows of top tokens in which nothing was computed yet."""
    return TopTokens(np.zeros((count, width), np.int64), np.full((count, width), np.nan, np.float32))


async def _cancel(group: Sequence[asyncio.Future[Any]]) -> None:
    for each in group:
        each.cancel()
    await asyncio.gather(*group, return_exceptions=True)
