"""One server of a pool, and the check that it computes the log-probabilities that the learner computes.

A server may apply no adapter or an older one, reuse cached keys of other weights, or return log-probabilities before
the temperature. It then samples from another distribution than the learner's, without any error. Therefore `Probe`
samples a few tokens with new weights before any rollout uses them, and compares their log-probabilities with those of
the learner: computed correctly, and as each of these faults would compute them. The best fit names the fault.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from ..errors import UserError
from ..policy import Policy
from ..tokens import CompletionRecord, SamplingParams, TokenDelta, TokenTree, pack
from .clients import Generation, ReplicaLostError, ServerClient, ServerInfo
from .vllm_process import VllmServer

logger = logging.getLogger(__name__)

_TEMPERATURE: Final = 0.7
"""Temperature of the tokens that are compared: not 1, where log-probabilities before and after it are the same."""
_BETTER: Final = 0.5
"""A fault is the cause if its mean difference is below this share of the difference without a fault."""
_FLOOR: Final = 1e-3
"""Mean differences (nats) up to this are rounding errors."""
_OTHER_MODEL: Final = 0.5
"""Mean differences (nats) from this on are those of another model."""
_FLOAT32_BOUND: Final = 0.01
_HALF_BOUND: Final = 0.1
_PROMPTS: Final = 4
_PROMPT_TOKENS: Final = 512
"""Maximum number of tokens of a prompt: its beginning, whose keys may be cached from an older version."""
_TOKENS: Final = 16
"""Tokens that are sampled for each prompt."""
_MAX_TOKENS: Final = 1024
"""Packed tokens of a forward pass of the learner."""
_HEAD_ROWS: Final = 256
"""LM-head chunk size of the learner, in tokens."""


class ParityError(UserError):
    """The log-probabilities of a server and those of the learner differ."""


@dataclass(eq=False)
class Publication:
    """One version of an adapter on the servers. The default is the bare model, which servers are started with."""

    adapter: str | None = None
    version: int = 0
    name: str | None = None
    """Name of the adapter on the servers, new for each publication: a server may have cached keys of the weights that
    it knew under an old name."""
    folder: Path = Path()
    requests: int = 0
    """Requests in flight that began with it."""

    @property
    def salt(self) -> str:
        """Salt of the prefix cache: keys are shared among requests of one salt. vLLM allows no @ in it."""
        return "base" if self.name is None else self.name.replace("@", ".")


class Replica:
    """A server of the pool. Used on the pool's event loop only.

    Args:
        url: its address.
        client: HTTP client of it.
        server: its process, if this run has started it.
    """

    def __init__(self, url: str, client: ServerClient, server: VllmServer | None = None) -> None:
        self.url = url
        self.client = client
        self.server = server
        self.info = ServerInfo("", 0)
        self.well = False
        self.loaded: set[str] = set()
        """Names of the adapters that it has loaded."""
        self.difference = math.inf
        """Mean difference (nats) of its log-probabilities from the learner's, as last compared; at first infinite."""
        self.in_flight = 0
        """Number of requests that it is answering."""
        self._readers: set[asyncio.Task[None]] = set()
        self._last_token = 0.0
        self._reason = ""

    async def sample(self, generation: Generation, on_delta: Callable[[TokenDelta], None], silence: float) -> None:
        """Sample a continuation; `on_delta` is called with each delta, the last with the finish reason.

        Args:
            silence: seconds without a token of any answer after which the server counts as hung.

        Raises:
            ReplicaLostError: the server was lost before the end of the answer.
            RequestRefusedError: the server refuses the request.
        """
        if not self.in_flight:
            self._last_token = time.monotonic()
        self.in_flight += 1
        reader = asyncio.create_task(self._read(generation, on_delta))
        self._readers.add(reader)
        try:
            while not reader.done():
                await asyncio.wait({reader}, timeout=silence)
                if not reader.done() and time.monotonic() - self._last_token >= silence:
                    raise ReplicaLostError(f"no token for {silence:.0f} seconds")
            if reader.cancelled():
                raise ReplicaLostError(self._reason)
            reader.result()
        finally:
            self._readers.discard(reader)
            self.in_flight -= 1
            if not reader.done():
                reader.cancel()
                await asyncio.gather(reader, return_exceptions=True)

    async def _read(self, generation: Generation, on_delta: Callable[[TokenDelta], None]) -> None:
        stream = self.client.stream(generation)
        try:
            async for delta in stream:
                self._last_token = time.monotonic()
                on_delta(delta)
        finally:
            await stream.aclose()

    def lose(self, reason: object) -> None:
        """Take the server out of use and fail its requests, which continue on other servers."""
        if self.well:
            logger.warning("the sampler %s is taken out: %s", self.url, reason)
        self.well = False
        self._reason = str(reason)
        for reader in list(self._readers):
            reader.cancel()


class Probe:
    """Compares servers with the learner. Used on the pool's event loop only.

    Args:
        policy: the learner's weights.
        prompts: token ids that are sampled from until requests have brought others.
        bound: mean difference that counts as rounding (nats); None is 0.01 in float32, else 0.1.
    """

    def __init__(self, policy: Policy, prompts: Sequence[Sequence[int]], bound: float | None) -> None:
        self.bound = bound or (_FLOAT32_BOUND if policy.model.dtype == torch.float32 else _HALF_BOUND)
        self._policy = policy
        self._prompts = deque((tuple(prompt)[:_PROMPT_TOKENS] for prompt in prompts if len(prompt)), maxlen=_PROMPTS)

    def remember(self, prompt_ids: tuple[int, ...]) -> None:
        """Use this prompt for the next checks; the last few prompts are used."""
        self._prompts.append(prompt_ids[:_PROMPT_TOKENS])

    async def check(self, replica: Replica, publication: Publication, silence: float) -> None:
        """Sample a few tokens from a server and compare them with the learner.

        Args:
            publication: the weights to sample with.
            silence: see `Replica.sample`.

        Raises:
            ParityError: they differ by more than rounding.
            ReplicaLostError: the server was lost.
            RequestRefusedError: the server refuses.
        """
        records = await asyncio.gather(*(self._sample(replica, publication, ids, silence) for ids in self._prompts))
        sampled = np.concatenate([record.logprobs for record in records])
        adapter = publication.adapter

        async def difference_from(temperature: float, adapter: str | None) -> float:
            """Return the mean absolute difference (nats) from what the learner computes."""
            at_temperature = [replace(record, temperature=temperature) for record in records]
            return float(np.abs(await self._logprobs(at_temperature, adapter) - sampled).mean())

        difference = replica.difference = await difference_from(_TEMPERATURE, adapter)
        if difference <= _FLOOR:
            return
        if await difference_from(1.0, adapter) < _BETTER * difference:
            cause = (
                "its log-probabilities are those before the temperature: start vLLM with "
                "--logprobs-mode processed_logprobs (SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB)"
            )
        elif adapter is not None and await difference_from(_TEMPERATURE, None) < _BETTER * difference:
            cause = "it samples without the adapter: its numbers are those of the bare model"
        elif difference <= self.bound:
            return
        elif difference >= _OTHER_MODEL:
            cause = "it serves another base model, or other weights of it"
        else:
            cause = (
                "check the number format of the server (--dtype), the adapter that it applies, and its prefix cache, "
                "which may hold keys of older weights; or raise `parity_bound`"
            )
        weights = "the bare model" if adapter is None else f"version {publication.version}"
        raise ParityError(
            f"the server {replica.url} does not sample {weights} as it is learnt (log-probabilities differ by "
            f"{difference:.3g} on average over {sampled.size} tokens): {cause}",
            setting="sampler",
        )

    async def _sample(
        self, replica: Replica, publication: Publication, prompt_ids: tuple[int, ...], silence: float
    ) -> CompletionRecord:
        deltas: list[TokenDelta] = []
        generation = Generation(
            model=replica.info.model,
            adapter=publication.name,
            prompt_ids=prompt_ids,
            sampling=SamplingParams(temperature=_TEMPERATURE, max_tokens=_TOKENS),
            salt=publication.salt,
            stream_interval=_TOKENS,
        )
        await replica.sample(generation, deltas.append, silence)
        return CompletionRecord(
            prompt_ids=np.array(prompt_ids, np.int64),
            output_ids=np.array([token for delta in deltas for token in delta.token_ids], np.int64),
            logprobs=np.array([logprob for delta in deltas for logprob in delta.logprobs], np.float32),
            temperature=_TEMPERATURE,
        )

    async def _logprobs(self, records: Sequence[CompletionRecord], adapter: str | None) -> npt.NDArray[np.float32]:
        """Return the learner's log-probabilities of all sampled tokens, one record after the other."""
        packed = pack([TokenTree.of([[record]]) for record in records])

        def score() -> npt.NDArray[np.float32]:
            scorer = self._policy.scorer(adapter, max_tokens=_MAX_TOKENS, head_rows=_HEAD_ROWS)
            logprobs: npt.NDArray[np.float32] = scorer.logprobs(packed).float().cpu().numpy()
            return logprobs

        return await self._policy.run_async(score)
