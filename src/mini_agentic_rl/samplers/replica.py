"""One server of a pool: its requests and weights, and whether it computes the log-probabilities that the learner does.

A server may apply no adapter or an older one, keep keys of other weights, or return log-probabilities before the
temperature. It then samples from another distribution than the one that is learnt, and nothing else would show it. So
the learner scores the first tokens that a server samples with new weights, before any rollout gets these weights: as
they should have been sampled, and under each of these faults. The best fit names the fault.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from ..errors import UserError
from ..policy import Policy
from ..tokens import CompletionRecord, SamplingParams, TokenDelta, TokenTree, pack
from .clients import Generation, ReplicaLostError, ServerClient, ServerInfo
from .vllm_process import Server

logger = logging.getLogger(__name__)

_TEMPERATURE: Final = 0.7
"""Temperature of the tokens that are compared: not 1, where log-probabilities before and after it are the same."""
_BETTER: Final = 0.5
"""A fault explains the numbers if its mean difference is below this share of the difference without a fault."""
_FLOOR: Final = 1e-3
"""Mean differences below this are rounding, whatever fits best (nats)."""
_OTHER_MODEL: Final = 0.5
"""Mean differences from this on are those of another model (nats)."""
_FLOAT32_BOUND: Final = 0.01
_HALF_BOUND: Final = 0.1
_PROMPTS: Final = 4
_PROMPT_TOKENS: Final = 512
"""The most tokens of a prompt that are sent: its beginning, whose keys an older version may have left in a cache."""
_TOKENS: Final = 16
"""Tokens that are sampled for each prompt."""
_MAX_TOKENS: Final = 1024
"""Packed tokens of a pass of the learner."""
_HEAD_ROWS: Final = 256
"""LM-head chunk size of the learner, in tokens."""


class ParityError(UserError):
    """The sampler and the learner do not compute the same."""


@dataclass(frozen=True)
class Parity:
    """Mean absolute differences (nats) between a sampler's log-probabilities and those of the learner."""

    tokens: int
    """Number of tokens that were compared."""
    difference: float
    """From the learner's, as they should be."""
    before_temperature: float
    """From the learner's, at temperature 1."""
    without_adapter: float | None
    """From those of the bare model; None where there is no adapter."""
    largest: float
    """Largest difference of a token from the learner's."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)

    def cause(self, bound: float) -> str | None:
        """Return what is wrong with the server, and what to look at; None where it fits."""
        if self.difference <= _FLOOR:
            return None
        if self.before_temperature < _BETTER * self.difference:
            return (
                "its log-probabilities are those before the temperature: start vLLM with "
                "--logprobs-mode processed_logprobs (SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB)"
            )
        if self.without_adapter is not None and self.without_adapter < _BETTER * self.difference:
            return "it samples without the adapter: its numbers are those of the bare model"
        if self.difference <= bound:
            return None
        if self.difference >= _OTHER_MODEL:
            return "it serves another base model, or other weights of it"
        return (
            "look at the number format that it computes in (--dtype), the adapter that it applies, and keys that it "
            "keeps of older weights (its prefix cache); or raise `parity_bound`"
        )


@dataclass(eq=False)
class Publication:
    """Weights of one version of one adapter, as servers have them; without a folder, those of the bare model."""

    adapter: str | None
    version: int
    name: str
    """Name of the weights on the servers, new for each publication: a reload under an old name would serve keys that
    were cached with the old weights. Empty where all weights of the model are replaced."""
    folder: Path
    salt: str
    """Cached keys are shared among requests of one salt. vLLM takes no @ and no / in it."""
    users: int = 0
    """Requests under way that began with it."""

    @classmethod
    def of_bare_model(cls) -> Publication:
        """Return the publication of the bare model, which servers are started with."""
        return cls(adapter=None, version=0, name="", folder=Path(), salt="base")


class Replica:
    """A server. Used from the pool's event loop only.

    Args:
        url: its address, for messages.
        client: talks to it.
        server: its process, where it was started for the pool.
    """

    def __init__(self, url: str, client: ServerClient, server: Server | None = None) -> None:
        self.url = url
        self.client = client
        self.server = server
        self.info = ServerInfo("", 0)
        self.well = False
        self.loaded: set[str] = set()
        """Names of the weights that it has."""
        self.parity: Parity | None = None
        """Its last comparison with the learner."""
        self.under_way = 0
        """Requests that it is answering."""
        self._readers: set[asyncio.Task[None]] = set()
        self._last_token = 0.0
        self._reason = ""

    async def sample(self, generation: Generation, on_delta: Callable[[TokenDelta], None], silence: float) -> None:
        """Sample a continuation; `on_delta` is called with each delta, the last with the finish reason.

        Args:
            silence: seconds without a token of any answer here after which the server is taken for hung.

        Raises:
            ReplicaLostError: the server was lost on the way.
            RequestRefusedError: the server refuses the request.
        """
        if not self.under_way:
            self._last_token = time.monotonic()
        self.under_way += 1
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
            self.under_way -= 1
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
        """Take the server out; its answers go on elsewhere."""
        if self.well:
            logger.warning("the sampler %s is taken out: %s", self.url, reason)
        self.well = False
        self._reason = str(reason)
        for reader in list(self._readers):
            reader.cancel()


class Probe:
    """Compares servers with the learner. Used from the pool's event loop only.

    Args:
        policy: the weights as they are learnt.
        prompts: token ids to begin with, until requests have brought better ones.
        bound: mean difference that is taken for rounding (nats); None is 0.01 in float32, else 0.1.
    """

    def __init__(self, policy: Policy, prompts: Sequence[Sequence[int]], bound: float | None) -> None:
        self.bound = bound or (_FLOAT32_BOUND if policy.model.dtype == torch.float32 else _HALF_BOUND)
        self._policy = policy
        self._prompts = deque((tuple(prompt)[:_PROMPT_TOKENS] for prompt in prompts if len(prompt)), maxlen=_PROMPTS)

    def remember(self, prompt_ids: tuple[int, ...]) -> None:
        """Probe with this prompt, among the last ones, from now on."""
        self._prompts.append(prompt_ids[:_PROMPT_TOKENS])

    async def check(self, replica: Replica, publication: Publication, silence: float) -> None:
        """Sample a few tokens from a server and compare them with the learner.

        Args:
            publication: the weights to sample with.
            silence: see `Replica.sample`.

        Raises:
            ParityError: they differ by more than rounding.
            ReplicaLostError: the server was lost on the way.
            RequestRefusedError: the server refuses.
        """
        records = await asyncio.gather(*(self._sample(replica, publication, ids, silence) for ids in self._prompts))
        parity = replica.parity = await self._compare(records, publication.adapter)
        cause = parity.cause(self.bound)
        if cause is not None:
            weights = "the bare model" if publication.adapter is None else f"version {publication.version}"
            raise ParityError(
                f"the server {replica.url} does not sample {weights} as it is learnt (log-probabilities differ by "
                f"{parity.difference:.3g} on average over {parity.tokens} tokens): {cause}",
                setting="sampler",
            )

    async def _sample(
        self, replica: Replica, publication: Publication, prompt_ids: tuple[int, ...], silence: float
    ) -> CompletionRecord:
        deltas: list[TokenDelta] = []
        generation = Generation(
            model=replica.info.model,
            adapter=publication.name or None,
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

    async def _compare(self, records: Sequence[CompletionRecord], adapter: str | None) -> Parity:
        """Compare tokens that were sampled with `adapter` with what the learner computes."""
        sampled = np.concatenate([record.logprobs for record in records])
        right = np.abs(await self._logprobs(records, adapter) - sampled)
        at_1 = [replace(record, temperature=1.0) for record in records]
        unscaled = np.abs(await self._logprobs(at_1, adapter) - sampled)
        without: float | None = None
        if adapter is not None and self._policy.model.peft_model is not None:
            without = float(np.abs(await self._logprobs(records, None) - sampled).mean())
        return Parity(
            tokens=int(sampled.size),
            difference=float(right.mean()),
            before_temperature=float(unscaled.mean()),
            without_adapter=without,
            largest=float(right.max()),
        )

    async def _logprobs(self, records: Sequence[CompletionRecord], adapter: str | None) -> npt.NDArray[np.float32]:
        """Return the learner's log-probabilities of all sampled tokens, one record after the other."""
        trees = [TokenTree() for _ in records]
        for tree, record in zip(trees, records, strict=True):
            tree.insert(record)
        packed = pack(trees)

        def score() -> npt.NDArray[np.float32]:
            scorer = self._policy.scorer(adapter, max_tokens=_MAX_TOKENS, head_rows=_HEAD_ROWS)
            logprobs: npt.NDArray[np.float32] = scorer.logprobs(packed).float().cpu().numpy()
            return logprobs

        return await self._policy.run_async(score)
