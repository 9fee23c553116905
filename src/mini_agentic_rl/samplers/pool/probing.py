"""The first tokens that a server samples with new weights, compared with the learner before any rollout gets them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np

from ...errors import UserError
from ...tokens import CompletionRecord, SamplingParams
from ..parity import PROBE_TEMPERATURE, Parity, ParityError, measure
from ..scores import Scores
from ..wire import Generation, RequestRefusedError, TokenChunk
from .publications import Publication
from .replica import Replica

_PROMPTS: Final = 4
_PROMPT_TOKENS: Final = 512
"""The most tokens of a prompt that are sent: its beginning, whose keys an older version may have left in a cache."""
_TOKENS: Final = 16
"""Tokens that are sampled for each prompt."""


class Probing:
    """Compares servers with the learner. Used from the pool's event loop only.

    Args:
        scores: the learner.
        prompts: token ids to begin with, until requests have brought better ones.
        bound: mean difference that is taken for rounding (nats).
        bare: whether the learner has a bare model beside its adapters.
    """

    def __init__(self, scores: Scores, prompts: Sequence[Sequence[int]], bound: float, *, bare: bool) -> None:
        self.bound = bound
        self._scores = scores
        self._bare = bare
        self._prompts = deque((tuple(prompt)[:_PROMPT_TOKENS] for prompt in prompts if len(prompt)), maxlen=_PROMPTS)

    def remember(self, prompt_ids: tuple[int, ...]) -> None:
        """Probe with this prompt, among the last ones, from now on."""
        self._prompts.append(prompt_ids[:_PROMPT_TOKENS])

    async def check(self, replica: Replica, publication: Publication | None, silence: float) -> Parity:
        """Sample a few tokens from a server and compare them with the learner.

        Args:
            publication: what is sampled with; None is the bare model.

        Raises:
            ParityError: they differ by more than rounding.
            ReplicaLostError: the server was lost on the way.
            RequestRefusedError: the server refuses.
        """
        records = await asyncio.gather(*(self._sample(replica, publication, one, silence) for one in self._prompts))
        adapter = None if publication is None else publication.adapter
        found = await measure(self._scores, records, adapter, bare=self._bare)
        replica.parity = found
        cause = found.cause(self.bound)
        if cause is not None:
            what = "the bare model" if publication is None else f"version {publication.version}"
            raise ParityError(
                f"the server {replica.url} does not sample {what} as it is learnt (log-probabilities differ by "
                f"{found.difference:.3g} on average over {found.tokens} tokens): {cause}",
                setting="sampler",
            )
        return found

    async def _sample(
        self, replica: Replica, publication: Publication | None, prompt_ids: tuple[int, ...], silence: float
    ) -> CompletionRecord:
        token_ids: list[int] = []
        logprobs: list[float] = []

        def on_chunk(chunk: TokenChunk) -> None:
            token_ids.extend(chunk.token_ids)
            logprobs.extend(chunk.logprobs)

        generation = Generation(
            model=replica.facts.model,
            adapter=None if publication is None or not publication.name else publication.name,
            prompt_ids=prompt_ids,
            sampling=SamplingParams(temperature=PROBE_TEMPERATURE, max_tokens=_TOKENS),
            salt="base" if publication is None else publication.salt,
            at_a_time=_TOKENS,
        )
        await replica.sample(generation, on_chunk, silence)
        return CompletionRecord(
            prompt_ids=np.array(prompt_ids, np.int64),
            output_ids=np.array(token_ids, np.int64),
            logprobs=np.array(logprobs, np.float32),
            temperature=PROBE_TEMPERATURE,
        )


def refused(url: str, error: RequestRefusedError, rank: int | None) -> UserError:
    """Return what a server's refusal means to whoever has started it, in one line."""
    text = error.text
    low = text.lower()
    if "token ids" in text and error.status == 200:
        return UserError(
            f"the server {url}: {text}; it has to be a vLLM of 0.10.2 or newer, or an SGLang", setting="sampler_url"
        )
    if "rank" in low:
        return UserError(
            f"the server {url} takes no adapter of rank {rank}: start it with --max-lora-rank {_allowed(rank)} "
            f"(it says: {text})",
            setting="lora_r",
        )
    if "lora" in low or error.status in (404, 405):
        return UserError(
            f"the server {url} loads no adapters: start it with --enable-lora and "
            f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 (it says: {text})",
            setting="sampler_url",
        )
    if "vocab" in low or "out of" in low:
        return UserError(f"the server {url} serves another base model (it says: {text})", setting="sampler_url")
    return UserError(f"the server {url} refuses: {text}", setting="sampler_url")


def _allowed(rank: int | None) -> int:
    """Return the least bound on ranks that vLLM knows and that this rank keeps to."""
    return next((one for one in (1, 8, 16, 32, 64, 128, 256, 320, 512) if one >= (rank or 1)), rank or 1)
